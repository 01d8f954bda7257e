from __future__ import annotations

from cockpit_core.kernels import AnyBins, Bins, LogBins, Spec
from cockpit_core.quantities.base import Quantity, Statistics, Value
from cockpit_core.quantities.histogram_range import AdaptiveRange, check_per_octave, check_range, choose_scale
from cockpit_core.quantities.histogram_values import record_histograms

PARAMETER_OCTAVES = (-40, 24)
"""A parameter below 1e-12 counts as zero, one above 1.7e7 is in the outermost bin."""


class GradHist2d(Quantity):
    """Which parameters get which gradients? Counts of all pairs ``([g_n]_j, [theta]_j)``, network and layer-wise.

    ``counts`` is [gradient bins, parameter bins]. A line at gradient 0 is a layer that learns nothing. ``scale="log"``: both
    axes by sign and magnitude, ``per_octave`` bins between two powers of two. ``scale="linear"``: ``bins`` of equal width on
    ``range`` and ``parameter_range``, as in the paper.
    """

    needs = ("histogram",)
    configurations = ("full",)
    kind = "histogram2d"
    layerwise = True
    description = "Joint distribution of individual gradient elements and parameter values."
    formula = (
        "counts of all pairs (element of `g_n`, parameter); 1 logarithmic bin per octave on both axes, "
        "or 40 even ones on (-1, 1) times 50 on (-2, 2)"
    )

    def __init__(
        self,
        *,
        scale: str | None = None,
        per_octave: int | None = None,
        bins: tuple[int, int] | None = None,
        range: tuple[float, float] | str | None = None,
        parameter_range: tuple[float, float] | None = None,
        schedule=None,
    ):
        super().__init__(schedule=schedule)
        self.scale = choose_scale(scale, bins=bins, range=range, parameter_range=parameter_range)
        self.per_octave = check_per_octave(per_octave, self.scale, 1)
        bins = (40, 50) if bins is None else bins
        if not isinstance(bins, (tuple, list)) or len(bins) != 2:
            raise ValueError(f"bins must be (gradient bins, parameter bins), got {bins!r}")
        self.bins = tuple(bins)
        self.range = check_range((-1.0, 1.0) if range is None else range)
        self.parameter_range = check_range((-2.0, 2.0) if parameter_range is None else parameter_range)
        self._adaptive = AdaptiveRange(1.0) if range == "adaptive" else None
        self.bins_now()

    def bins_now(self) -> tuple[AnyBins, AnyBins]:
        if self.scale == "log":
            return LogBins(self.per_octave), LogBins(self.per_octave, *PARAMETER_OCTAVES)
        low, high = self._adaptive.bounds if self._adaptive else self.range
        return Bins(low, high, self.bins[0]), Bins(self.parameter_range[0], self.parameter_range[1], self.bins[1])

    def counted(self) -> Spec:
        return Spec(joint=self.bins_now())

    def measure(self, statistics: Statistics) -> Value:
        value = record_histograms(statistics, self.name, self.kind)
        if self._adaptive and value.histograms:
            self._adaptive.follow(value.histograms[0])
        return value

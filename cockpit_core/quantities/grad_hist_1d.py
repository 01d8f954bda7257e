from __future__ import annotations

from cockpit_core.kernels import AnyBins, Bins, LogBins, Spec
from cockpit_core.quantities.base import Quantity, Statistics, Value
from cockpit_core.quantities.histogram_range import AdaptiveRange, check_per_octave, check_range, choose_scale
from cockpit_core.quantities.histogram_values import record_histograms


class GradHist1d(Quantity):
    """How are individual gradient elements distributed? Counts of all B * D values ``[g_n]_j``, network and layer-wise.

    ``scale="log"``: bins by sign and magnitude, ``per_octave`` between two powers of two, one for zero; nothing is outside.
    ``scale="linear"``: ``bins`` of equal width on ``range``, as in the paper. Values outside fall into the outermost bin and
    are also counted separately; ``range="adaptive"`` follows the values by doubling and halving. Edges are part of
    each record.
    """

    needs = ("histogram",)
    configurations = ("economy", "business", "full")
    kind = "histogram1d"
    layerwise = True
    description = "Distribution of all elements of all individual gradients."
    formula = "counts of all B D elements of all `g_n`; 2 logarithmic bins per octave, or 100 even ones on (-2, 2)"

    def __init__(
        self,
        *,
        scale: str | None = None,
        per_octave: int | None = None,
        bins: int | None = None,
        range: tuple[float, float] | str | None = None,
        schedule=None,
    ):
        super().__init__(schedule=schedule)
        self.scale = choose_scale(scale, bins=bins, range=range)
        self.per_octave = check_per_octave(per_octave, self.scale, 2)
        self.bins = 100 if bins is None else bins
        self.range = check_range((-2.0, 2.0) if range is None else range)
        self._adaptive = AdaptiveRange(2.0) if range == "adaptive" else None
        self._spec = Spec(gradient=self.bins_now())

    def bins_now(self) -> AnyBins:
        if self.scale == "log":
            return LogBins(self.per_octave)
        low, high = self._adaptive.bounds if self._adaptive else self.range
        return Bins(low, high, self.bins)

    def counted(self) -> Spec:
        if self._adaptive:
            self._spec = Spec(gradient=self.bins_now())
        return self._spec

    def measure(self, statistics: Statistics) -> Value:
        value = record_histograms(statistics, self.name, self.kind)
        if self._adaptive and value.histograms:
            self._adaptive.follow(value.histograms[0])
        return value

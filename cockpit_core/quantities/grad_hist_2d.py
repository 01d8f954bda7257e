from __future__ import annotations

from cockpit_core.kernels import Bins, Spec
from cockpit_core.quantities.base import Quantity, Statistics, Value
from cockpit_core.quantities.histogram_range import AdaptiveRange, check_range
from cockpit_core.quantities.histogram_values import join_counts


class GradHist2d(Quantity):
    """Which parameters get which gradients? Counts of all pairs ``([g_n]_j, [theta]_j)``, network and layer-wise.

    ``counts`` is [gradient bins, parameter bins]. A line at gradient 0 is a layer that learns nothing.
    """

    needs = ("histogram",)
    configurations = ("full",)
    kind = "histogram2d"
    layerwise = True
    description = "Joint distribution of individual gradient elements and parameter values."
    formula = "counts of all pairs (element of `g_n`, parameter); 40 bins on (-1, 1) times 50 on (-2, 2)"

    def __init__(
        self,
        *,
        bins: tuple[int, int] = (40, 50),
        range: tuple[float, float] | str = (-1.0, 1.0),
        parameter_range: tuple[float, float] = (-2.0, 2.0),
        schedule=None,
    ):
        super().__init__(schedule=schedule)
        if not isinstance(bins, (tuple, list)) or len(bins) != 2:
            raise ValueError(f"bins must be (gradient bins, parameter bins), got {bins!r}")
        self.bins, self.range, self.parameter_range = tuple(bins), check_range(range), check_range(parameter_range)
        self._adaptive = AdaptiveRange(1.0) if range == "adaptive" else None
        self.bins_now()

    def bins_now(self) -> tuple[Bins, Bins]:
        low, high = self._adaptive.bounds if self._adaptive else self.range
        return Bins(low, high, self.bins[0]), Bins(self.parameter_range[0], self.parameter_range[1], self.bins[1])

    def counted(self) -> Spec:
        return Spec(joint=self.bins_now())

    def measure(self, statistics: Statistics) -> Value:
        network, layers = join_counts(statistics)
        step = statistics.step
        found = network.histogram2d(step, quantity=self.name)
        self.follow(found.counts, found.below, found.above)
        return Value(histograms=(found, {n: c.histogram2d(step, n, self.name) for n, c in layers.items()}))

    def follow(self, counts, below: int, above: int) -> None:
        if self._adaptive:
            self._adaptive.follow(counts.sum(1), below + above)

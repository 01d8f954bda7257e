from __future__ import annotations

from cockpit_core.kernels import Bins, Spec
from cockpit_core.quantities.base import Quantity, Statistics, Value
from cockpit_core.quantities.histogram_range import AdaptiveRange, check_range
from cockpit_core.quantities.histogram_values import join_counts


class GradHist1d(Quantity):
    """How are individual gradient elements distributed? Counts of all B * D values ``[g_n]_j``, network and layer-wise.

    Values outside the range fall into the outermost bin and are counted apart too. ``range="adaptive"`` follows the
    values by doubling and halving; the range is then part of each record.
    """

    needs = ("histogram",)
    configurations = ("economy", "business", "full")
    kind = "histogram1d"
    layerwise = True
    description = "Distribution of all elements of all individual gradients."
    formula = "counts of all B D elements of all `g_n`; 100 bins on (-2, 2)"

    def __init__(self, *, bins: int = 100, range: tuple[float, float] | str = (-2.0, 2.0), schedule=None):
        super().__init__(schedule=schedule)
        self.bins, self.range = bins, check_range(range)
        self._adaptive = AdaptiveRange(2.0) if range == "adaptive" else None
        self.bins_now()

    def bins_now(self) -> Bins:
        low, high = self._adaptive.bounds if self._adaptive else self.range
        return Bins(low, high, self.bins)

    def counted(self) -> Spec:
        return Spec(gradient=self.bins_now())

    def measure(self, statistics: Statistics) -> Value:
        network, layers = join_counts(statistics)
        step = statistics.step
        found = network.histogram1d(step, quantity=self.name)
        self.follow(found.counts, found.below, found.above)
        return Value(histograms=(found, {n: c.histogram1d(step, n, self.name) for n, c in layers.items()}))

    def follow(self, counts, below: int, above: int) -> None:
        if self._adaptive:
            self._adaptive.follow(counts, below + above)

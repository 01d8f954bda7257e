from __future__ import annotations

from cockpit_core.kernels import Bins
from cockpit_core.quantities.base import Quantity
from cockpit_core.quantities.histogram_range import AdaptiveRange, check_range


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

    def __init__(self, *, bins: int = 100, range: tuple[float, float] | str = (-2.0, 2.0), schedule=None):
        super().__init__(schedule=schedule)
        self.bins, self.range = bins, check_range(range)
        self._adaptive = AdaptiveRange(2.0) if range == "adaptive" else None
        self.bins_now()

    def bins_now(self) -> Bins:
        low, high = self._adaptive.bounds if self._adaptive else self.range
        return Bins(low, high, self.bins)

    def follow(self, counts, below: int, above: int) -> None:
        if self._adaptive:
            self._adaptive.follow(counts, below + above)

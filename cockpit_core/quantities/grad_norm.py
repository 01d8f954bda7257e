from __future__ import annotations

from cockpit_core.quantities.base import Quantity, Statistics, Value
from cockpit_core.quantities.norms import norm_value


class GradNorm(Quantity):
    """How steep is the loss here? ``||g||_2`` of the mini-batch gradient before clipping, network and layer-wise."""

    configurations = ("economy", "business", "full")
    layerwise = True
    description = "Length of the mini-batch gradient, before the user's clipping."
    formula = "length of `g`, before your clipping (`GradNormClipped`: as the optimizer saw it)"
    headline = True

    def measure(self, statistics: Statistics) -> Value:
        return norm_value(dict(statistics.gradient_norms))

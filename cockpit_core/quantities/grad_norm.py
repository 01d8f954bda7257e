from __future__ import annotations

from cockpit_core.quantities.base import NoValue, Quantity, Statistics, Value
from cockpit_core.quantities.norms import combine


class GradNorm(Quantity):
    """How steep is the loss here? ``||g||_2`` of the mini-batch gradient before clipping, network and layer-wise."""

    configurations = ("economy", "business", "full")
    layerwise = True
    description = "Length of the mini-batch gradient, before the user's clipping."

    def measure(self, statistics: Statistics) -> Value:
        layers = dict(statistics.gradient_norms)
        if not layers:
            raise NoValue("no parameter has a gradient")
        return Value(combine(layers), layers)

from __future__ import annotations

from cockpit_core.quantities.base import Quantity, Statistics, Value
from cockpit_core.quantities.norms import norm_value


class Distance(Quantity):
    """How far has training come? ``||theta_t - theta_0||_2``. Growth like sqrt(t) is diffusion, faster is progress."""

    needs = ("parameters", "start")
    configurations = ("economy", "business", "full")
    layerwise = True
    description = "Distance of the parameters from where the run began."
    formula = "length of `theta_t - theta_0`"
    headline = True

    def measure(self, statistics: Statistics) -> Value:
        unknown = [name for name in statistics.parameters if name not in statistics.start]
        value = norm_value(statistics.norms_of("moved"))
        if unknown:
            value.network = None
            value.reason = f"{unknown[0]} was not trained when this run began, so it is not known how far it has come"
        return value

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
        return norm_value(statistics.norms_of("moved"))

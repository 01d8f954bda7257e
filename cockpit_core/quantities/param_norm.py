from __future__ import annotations

from cockpit_core.quantities.base import Quantity, Statistics, Value
from cockpit_core.quantities.norms import norm_value


class ParamNorm(Quantity):
    """How large are the weights? ``||theta_t||_2``. UpdateSize / ParamNorm is healthy around 1e-3."""

    needs = ("parameters",)
    configurations = ("economy", "business", "full")
    layerwise = True
    description = "Length of the parameter vector before the step."
    formula = "length of `theta_t`"
    headline = True

    def measure(self, statistics: Statistics) -> Value:
        return norm_value(statistics.norms_of("parameters"))

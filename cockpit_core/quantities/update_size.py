from __future__ import annotations

from cockpit_core.quantities.base import Quantity, Statistics, Value
from cockpit_core.quantities.norms import norm_value


class UpdateSize(Quantity):
    """How long was the step? ``||s_t||_2``, what the optimizer really did: momentum, decay, clipping included."""

    needs = ("update",)
    configurations = ("economy", "business", "full")
    layerwise = True
    description = "Length of the step that the optimizer took."
    formula = "length of `s_t`"
    headline = True

    def measure(self, statistics: Statistics) -> Value:
        return norm_value(statistics.norms_of("update"))

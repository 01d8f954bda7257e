from __future__ import annotations

from cockpit_core.quantities.base import NoValue, Quantity, Statistics


class Loss(Quantity):
    """Is training making progress? ``L_t = (1/B) sum_n l_n``, the scalar that is differentiated, on this batch."""

    configurations = ("economy", "business", "full")
    description = "The mini-batch loss that is differentiated at this step."
    formula = "`L_t`"
    headline = True

    def measure(self, statistics: Statistics) -> float:
        if not statistics.batch_size and not statistics.backward_seen:
            raise NoValue(statistics.reason("individual", "no loss was captured"))
        return statistics.loss

from __future__ import annotations

from cockpit_core.quantities.base import Quantity, Statistics, Value
from cockpit_core.quantities.batch_sharpness import find_curvature


class DirectionalSharpness(Quantity):
    """How curved is the loss where the optimizer goes? ``s' H s / s's``, H of this batch at the start of the step.

    The second-order cost of a step: the loss changes by ``g.s + s' H s / 2``. Adaptive optimizers tend to choose flatter
    directions than SGD (Pan and Li 2023, arXiv 2306.00204). "DirectionalSharpness/share" is ``(s' H s / 2) / (-g.s)``,
    the share of the promised decrease that curvature takes back; at 1 the step gains nothing. Costs a forward pass, a
    backward pass and a double backward pass. Exact; no value where the forward pass cannot be repeated.
    """

    needs = ("gradients", "update", "update_curvature")
    description = "Curvature of the batch loss along the step that the optimizer took."
    question = "how curved is it where the optimizer goes?"
    formula = "`s' H s / s's`; `/share` is `(s' H s / 2) / (-g.s)`"
    cost = "the same; both together hardly more"

    def measure(self, statistics: Statistics) -> Value:
        sharpness = find_curvature(statistics, "update")
        promised = -sum(statistics.products_of("update", "gradients").values())
        taken = sharpness * sum(norm**2 for norm in statistics.norms_of("update").values()) / 2
        parts = {"share": Value(taken / promised)} if promised > 0 else {}
        return Value(sharpness, parts=parts)

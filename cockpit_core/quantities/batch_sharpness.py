from __future__ import annotations

from cockpit_core.quantities.base import NoValue, Quantity, Statistics, Value


class BatchSharpness(Quantity):
    """How curved is the loss of the batch along its own gradient? ``kappa = g' H g / g'g``, g and H of this batch.

    With SGD its mean over steps settles at ``2 / lr``, the edge of stochastic stability (Andreyev and Beneventano 2024,
    arXiv 2412.20553), long before the largest eigenvalue gets there. "BatchSharpness/ratio" is ``kappa lr / 2``, where
    there is one learning rate: 1 is that edge for plain SGD; with momentum or Adam other limits hold. Costs a forward
    pass, a backward pass and a double backward pass. Exact; no value where there is no second derivative, or where the
    forward pass cannot be repeated.
    """

    needs = ("gradients", "update", "gradient_curvature")
    description = "Curvature of the batch loss along its own gradient; plain SGD settles at 2 / learning rate."
    question = "how curved is the loss along its gradient?"
    formula = "`g' H g / g'g`; `/ratio` is that times lr / 2"
    cost = "a forward, a backward, a double backward pass"

    def measure(self, statistics: Statistics) -> Value:
        kappa = find_curvature(statistics, "gradient")
        rates = set(statistics.learning_rates)
        parts = {"ratio": Value(kappa * next(iter(rates)) / 2)} if len(rates) == 1 else {}
        return Value(kappa, parts=parts)


def find_curvature(statistics: Statistics, direction: str) -> float:
    own, need = statistics.own_batch, f"{direction}_curvature"
    if own is None or direction not in own.curvatures:
        raise NoValue("it was not measured" if own is None else own.reasons.get(need, "it was not measured"))
    return own.curvatures[direction]

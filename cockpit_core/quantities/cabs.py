from __future__ import annotations

from cockpit_core.quantities.base import NoValue, Quantity, Statistics


class CABS(Quantity):
    """Which batch size suits the noise? Coupled adaptive batch size (Balles, Romero and Hennig 2017), in samples:

    ``lr * ( (1/B) sum_n ||g_n||^2 - ||g||^2 ) / L_t``. Derived for plain SGD and a loss whose minimum is 0.
    """

    needs = ("norms",)
    unit = "samples"
    defined_for_sgd = True
    description = "Batch size that suits the gradient noise at this learning rate."
    formula = "`lr ( (1/B) sum_n ||g_n||^2 - ||g||^2 ) / L`, a batch size"

    def measure(self, statistics: Statistics) -> float:
        if not statistics.norms:
            raise NoValue(statistics.reason("individual", "no layer has individual gradients"))
        if len(set(statistics.learning_rates)) != 1:
            raise NoValue("CABS needs one learning rate, and the parameter groups have several")
        if statistics.loss == 0:
            raise NoValue("the loss is zero")
        total = sum(float(norms.sum()) for norms in statistics.norms.values())
        squared = sum(statistics.gradient_norms[name] ** 2 for name in statistics.norms)
        return statistics.learning_rates[0] * (total / statistics.batch_size - squared) / statistics.loss

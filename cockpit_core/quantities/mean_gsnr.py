from __future__ import annotations

from cockpit_core.quantities.base import NoValue, Quantity, Statistics, check_positive


class MeanGSNR(Quantity):
    """Do individual gradients agree, element by element? Mean signal-to-noise ratio (Liu et al. 2020):

    ``(1/D) sum_j [g]_j^2 / ( (1/B) sum_n [g_n]_j^2 - [g]_j^2 + eps )``. Falls during training; high is said to
    generalise better. Elements with gradients far below sqrt(eps) say nothing.
    """

    needs = ("squares", "gradients")
    description = "Mean ratio of squared gradient to gradient variance, over all elements."
    formula = "`(1/D) sum_j g_j^2 / ( (1/B) sum_n g_nj^2 - g_j^2 + eps )`"

    def __init__(self, *, epsilon: float = 1e-5, schedule=None):
        super().__init__(schedule=schedule)
        self.epsilon = check_positive("epsilon", epsilon)

    def measure(self, statistics: Statistics) -> float:
        if not statistics.squares:
            raise NoValue(statistics.reason("individual", "no layer has individual gradients"))
        total, elements = 0.0, 0
        for name, squares in statistics.squares.items():
            g2 = statistics.gradients[name].double().square()
            variance = squares.double() / statistics.batch_size - g2
            total += float((g2 / (variance + self.epsilon)).sum())
            elements += g2.numel()
        return total / elements

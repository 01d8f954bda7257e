from __future__ import annotations

from cockpit_core.quantities.base import Quantity, Statistics, Value
from cockpit_core.quantities.gradient_tests import evaluate_test


class InnerTest(Quantity):
    """Do individual gradients agree along the mean gradient? Relative width of the band along ``g``:

    ``sqrt( (1/(B(B-1))) ( sum_n (g_n.g)^2 / ||g||^4 - B ) )``. Customary threshold 0.9.
    """

    needs = ("dots",)
    configurations = ("economy", "business", "full")
    layerwise = True
    description = "Relative spread of individual gradients along the mean gradient."
    formula = "`sqrt( (1/(B(B-1))) ( sum_n (g_n.g)^2 / ||g||^4 - B ) )`"

    def measure(self, statistics: Statistics) -> Value:
        return evaluate_test(statistics, under_root)


def under_root(B: int, norms: float, along: float) -> float:
    return (along - B) / (B * (B - 1))

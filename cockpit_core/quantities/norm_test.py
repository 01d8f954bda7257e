from __future__ import annotations

from cockpit_core.quantities.base import Quantity, Statistics, Value
from cockpit_core.quantities.gradient_tests import evaluate_test


class NormTest(Quantity):
    """Is the batch large enough for the gradient to be trusted? Relative radius of the noise ball around ``g``:

    ``sqrt( (1/(B(B-1))) ( sum_n ||g_n||^2 / ||g||^2 - B ) )``. Customary threshold 0.9; larger means noise dominates.
    """

    needs = ("norms",)
    configurations = ("economy", "business", "full")
    layerwise = True
    description = "Relative radius of the noise ball around the mean gradient; above 0.9 noise dominates."
    formula = "`sqrt( (1/(B(B-1))) ( sum_n ||g_n||^2 / ||g||^2 - B ) )`"
    headline = True

    def measure(self, statistics: Statistics) -> Value:
        return evaluate_test(statistics, under_root)


def under_root(B: int, norms: float, along: float) -> float:
    return (norms - B) / (B * (B - 1))

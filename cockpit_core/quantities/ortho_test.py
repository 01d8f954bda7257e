from __future__ import annotations

from cockpit_core.quantities.base import Quantity, Statistics, Value
from cockpit_core.quantities.gradient_tests import evaluate_test


class OrthoTest(Quantity):
    """How much do individual gradients scatter sideways? Relative width of the band across ``g``:

    ``sqrt( (1/(B(B-1))) sum_n ( ||g_n||^2/||g||^2 - (g_n.g)^2/||g||^4 ) )``. Customary threshold 5.84.
    """

    needs = ("norms", "dots")
    configurations = ("economy", "business", "full")
    layerwise = True
    description = "Relative spread of individual gradients across the mean gradient."
    formula = "`sqrt( (1/(B(B-1))) sum_n ( ||g_n||^2/||g||^2 - (g_n.g)^2/||g||^4 ) )`"

    def measure(self, statistics: Statistics) -> Value:
        return evaluate_test(statistics, under_root)


def under_root(B: int, norms: float, along: float) -> float:
    return (norms - along) / (B * (B - 1))

from __future__ import annotations

from cockpit_core.quantities.base import Quantity, Statistics, Value
from cockpit_core.quantities.curvature_values import check_curvature, find_eigenpair


class HessMaxEV(Quantity):
    """How curved is the steepest direction? The algebraically largest eigenvalue of the curvature, by Lanczos.

    For gradient descent, above 2 / learning rate steps grow (the edge of stability). The error is the residual norm.
    """

    needs = ("eigenvalue",)
    configurations = ("full",)
    description = "Largest eigenvalue of the Hessian of the mini-batch loss."
    formula = "its algebraically largest eigenvalue"
    headline = True

    def __init__(self, *, curvature: str | None = None, schedule=None):
        super().__init__(schedule=schedule)
        self.curvature = check_curvature(curvature)

    def measure(self, statistics: Statistics) -> Value:
        pair = find_eigenpair(statistics, self.curvature)
        part = f", {statistics.curvature_part}" if statistics.curvature_part else ""
        return Value(pair.value, error=pair.residual, method=f"Lanczos residual, {pair.products} products{part}")

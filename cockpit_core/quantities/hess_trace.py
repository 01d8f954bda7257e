from __future__ import annotations

from cockpit_core.quantities.base import Quantity, Statistics, Value
from cockpit_core.quantities.curvature_values import check_curvature, describe_diagonal, find_diagonal


class HessTrace(Quantity):
    """How curved is the loss on average? ``Tr(H)``, network and layer-wise, from the diagonal of the curvature."""

    needs = ("diagonal",)
    configurations = ("business", "full")
    layerwise = True
    description = "Trace of the Hessian of the mini-batch loss."
    formula = "trace of the Hessian"
    headline = True

    def __init__(self, *, curvature: str | None = None, schedule=None):
        super().__init__(schedule=schedule)
        self.curvature = check_curvature(curvature)

    def measure(self, statistics: Statistics) -> Value:
        diagonal = find_diagonal(statistics, self.curvature)
        return Value(
            diagonal.trace, diagonal.traces, error=diagonal.trace_error, method=describe_diagonal(statistics, diagonal)
        )

from __future__ import annotations

from cockpit_core.quantities.base import NoValue, Quantity, Statistics, Value, check_positive
from cockpit_core.quantities.curvature_values import check_curvature, describe_diagonal, find_diagonal


class TICTrace(Quantity):
    """How much noise per curvature, in one ratio of traces? ``( (1/B) sum_n ||g_n||^2 ) / ( Tr(H) + eps )``."""

    needs = ("diagonal", "norms")
    description = "Takeuchi's information criterion, ratio of traces."
    formula = "`( (1/B) sum_n ||g_n||^2 ) / ( Tr(H) + eps )`"

    def __init__(self, *, epsilon: float = 1e-7, curvature: str | None = None, schedule=None):
        super().__init__(schedule=schedule)
        self.epsilon, self.curvature = check_positive("epsilon", epsilon), check_curvature(curvature)

    def measure(self, statistics: Statistics) -> Value:
        diagonal = find_diagonal(statistics, self.curvature)
        traces = diagonal.traces
        names = [name for name in statistics.norms if name in traces]
        if not names:
            raise NoValue(statistics.reason("individual", "no layer has individual gradients"))
        second = sum(float(statistics.norms[name].sum()) for name in names) / statistics.batch_size
        trace = diagonal.trace if len(names) == len(traces) else sum(traces[n] for n in names)
        value = second / (trace + self.epsilon)
        if diagonal.exact:
            return Value(value, method=describe_diagonal(statistics, diagonal))
        relative = abs((diagonal.trace_error or 0.0) / (trace + self.epsilon))
        return Value(value, error=abs(value) * relative, method=describe_diagonal(statistics, diagonal))

from __future__ import annotations

from cockpit_core.foundation.accelerator import read_numbers
from cockpit_core.quantities.base import NoValue, Quantity, Statistics, Value, check_positive
from cockpit_core.quantities.curvature_values import check_curvature, describe_elements, find_diagonal


class TICDiag(Quantity):
    """How much noise per curvature? Takeuchi's information criterion with both matrices cut to their diagonals:

    ``sum_j ( (1/B) sum_n [g_n]_j^2 ) / ( [H]_jj + eps )``. Said to predict the generalisation gap (Thomas et al. 2020).
    Entries of H near zero dominate it; an estimated diagonal would divide by noise. Where the exact diagonal of the
    Hessian is not available, that of Gauss-Newton takes its place, and the value says so: its entries are never
    negative.
    """

    needs = ("diagonal", "squares")
    configurations = ("business", "full")
    description = "Takeuchi's information criterion, diagonal approximation."
    formula = "`sum_j ( (1/B) sum_n g_nj^2 ) / ( H_jj + eps )`"
    headline = True

    def __init__(self, *, epsilon: float = 1e-7, curvature: str | None = None, schedule=None):
        super().__init__(schedule=schedule)
        self.epsilon, self.curvature = check_positive("epsilon", epsilon), check_curvature(curvature)

    def measure(self, statistics: Statistics) -> Value:
        diagonal = find_diagonal(statistics, self.curvature)
        if not diagonal.exact and diagonal.kind != "ggn_mc" and not diagonal.elements:  # drawn, but never negative
            other = "ggn" if diagonal.kind == "hessian" else "ggn_mc"
            raise NoValue(
                f"the diagonal is an estimate here, and TICDiag would divide by its noise; use curvature={other!r}"
            )
        names = [name for name in statistics.squares if name in diagonal.values]
        if not names:
            raise NoValue(statistics.reason("individual", "no layer has individual gradients"))
        parts = []
        for name in names:
            mean = statistics.squares[name].double() / statistics.batch_size
            parts.append((mean / (diagonal.values[name].double() + self.epsilon)).sum())
        return Value(sum(read_numbers(parts)), method=describe_elements(statistics, diagonal))

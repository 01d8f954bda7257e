"""Curvature at one point: products, the largest eigenvalue, the diagonal and the trace. No hooks, no globals."""

from .diagonal import diagonal
from .lanczos import Eigenpair, largest_eigenvalue
from .operators import GGNOperator, HessianOperator, make_operator
from .point import NoCurvature, Point
from .results import Diagonal, Limits

__all__ = [
    "Diagonal",
    "Eigenpair",
    "GGNOperator",
    "HessianOperator",
    "Limits",
    "NoCurvature",
    "Point",
    "diagonal",
    "largest_eigenvalue",
    "make_operator",
]

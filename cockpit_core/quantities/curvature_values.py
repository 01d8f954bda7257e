"""Looking up the curvature that a quantity asks for, with the reason where there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cockpit_core.quantities.base import NoValue, Statistics

if TYPE_CHECKING:
    from cockpit_core.curvature import Diagonal, Eigenpair

KINDS = ("hessian", "ggn", "ggn_mc")


def check_curvature(kind: str | None) -> str | None:
    if kind is not None and kind not in KINDS:
        raise ValueError(f"curvature must be one of {', '.join(KINDS)}, got {kind!r}")
    return kind


def find_diagonal(statistics: Statistics, kind: str | None) -> Diagonal:
    wanted = kind or statistics.curvature
    if wanted not in statistics.diagonals:
        raise NoValue(statistics.reason(f"diagonal {wanted}", "the diagonal was not measured"))
    return statistics.diagonals[wanted]


def describe_diagonal(statistics: Statistics, diagonal: Diagonal) -> str:
    """How the value may be off, in words; "" for one that is exact on the whole batch."""
    method = "" if diagonal.exact else diagonal.method
    return ", ".join(part for part in (method, statistics.curvature_part) if part)


def describe_elements(statistics: Statistics, diagonal: Diagonal) -> str:
    """The same for a value that reads the diagonal element by element: it may be Gauss-Newton's."""
    if not diagonal.elements:
        return describe_diagonal(statistics, diagonal)
    return ", ".join(part for part in (diagonal.elements, statistics.curvature_part) if part)


def find_eigenpair(statistics: Statistics, kind: str | None) -> Eigenpair:
    wanted = kind or statistics.curvature
    if wanted not in statistics.eigenpairs:
        raise NoValue(statistics.reason(f"eigenvalue {wanted}", "the eigenvalue was not measured"))
    return statistics.eigenpairs[wanted]

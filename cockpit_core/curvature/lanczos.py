"""The algebraically largest eigenvalue of a matrix that is only known by its products with vectors.

Lanczos with full reorthogonalisation and thick restarts (Wu and Simon, 2000) on device; the small projected matrix is
in float64. Power iteration would find the eigenvalue of largest magnitude, which is another one wherever the most
negative eigenvalue dominates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .operators import Operator, flatten, unflatten
from .point import NoCurvature

_KEPT_AT_RESTART = 4


@dataclass(frozen=True)
class Eigenpair:
    """``residual`` is ``||A v - value v||`` (v of length one): some eigenvalue lies within it of ``value``.

    ``error`` is the tighter bound on the value's own error, residual^2 / gap, where the gap to the next Ritz value
    allows it. ``converged`` is False if the products ran out before the tolerance was met.
    """

    value: float
    vector: list[Tensor]
    residual: float
    products: int
    error: float
    converged: bool


class _Basis:
    """Orthonormal vectors V [m, D], the projected matrix ``V A V^T`` and the part of ``A v_m`` that sticks out of V."""

    def __init__(self, operator: Operator, start: Tensor, capacity: int):
        self.operator = operator
        self.vectors = start.new_empty(capacity, start.numel())
        self.projected = torch.zeros(capacity, capacity, dtype=torch.float64)
        self.size = 0
        self.next = start
        self.overhang = math.inf

    def grow(self) -> None:
        """One product: take ``next`` in, and find the new direction by orthogonalising its image, twice."""
        m = self.size
        self.vectors[m] = self.next
        image = flatten(self.operator.matvec(unflatten(self.next, self.operator.parameters)))
        if not bool(torch.isfinite(image).all()):
            raise NoCurvature("the Hessian is not finite at this step")
        basis = self.vectors[: m + 1]
        coefficients = basis @ image
        image = image - coefficients @ basis
        again = basis @ image
        image = image - again @ basis
        column = (coefficients + again).double().cpu()
        self.projected[: m + 1, m] = column
        self.projected[m, : m + 1] = column
        self.size = m + 1
        self.overhang = float(torch.linalg.vector_norm(image, dtype=torch.float64))
        # Below rounding the direction is noise: the Krylov space is exhausted.
        if self.overhang <= 8 * torch.finfo(image.dtype).eps * float(self.projected.abs().max()):
            self.overhang = 0.0
        self.next = image / self.overhang if self.overhang > 0 else image

    def ritz(self) -> tuple[Tensor, Tensor, Tensor]:
        """Ritz values ascending, their coefficient columns, and their residual norms."""
        values, columns = torch.linalg.eigh(self.projected[: self.size, : self.size])
        return values, columns, self.overhang * columns[-1].abs()

    def restart(self) -> None:
        """Keep the best Ritz vectors, so that memory stays bounded however many products are made."""
        values, columns, _ = self.ritz()
        kept = min(_KEPT_AT_RESTART, self.size - 1)
        best = columns[:, -kept:].to(self.vectors)
        self.vectors[:kept] = best.T @ self.vectors[: self.size]
        self.projected.zero_()
        self.projected[:kept, :kept] = torch.diag(values[-kept:])
        self.size = kept


def _random(like: Tensor, generator: torch.Generator) -> Tensor:
    """A direction drawn from the caller's generator, on the generator's device first: never the global state."""
    drawn = torch.randn(like.numel(), generator=generator, device=generator.device, dtype=torch.float32)
    drawn = drawn.to(like)
    return drawn / torch.linalg.vector_norm(drawn)


def _first_vector(
    operator: Operator, start: Sequence[Tensor] | None, generator: torch.Generator, noise: float
) -> Tensor:
    like = flatten([p.detach() for p in operator.parameters])
    if not like.is_floating_point() or like.dtype in (torch.float16, torch.bfloat16):
        like = like.float()
    fresh = _random(like, generator)
    if start is not None:
        old = flatten(start).to(like)
        length = torch.linalg.vector_norm(old)
        if old.numel() == like.numel() and bool(torch.isfinite(length)) and float(length) > 0:
            fresh = old / length + noise * fresh
    return fresh / torch.linalg.vector_norm(fresh)


def _bounds(basis: _Basis) -> tuple[float, float, float, float]:
    """Value, residual and error bound of the top Ritz pair, and how high the others might still reach above it."""
    values, _, residuals = basis.ritz()
    value, residual = float(values[-1]), float(residuals[-1])
    if basis.size == 1:
        return value, residual, residual, residual
    gap = float(values[-1] - values[-2])
    error = min(residual, residual**2 / gap) if gap > residual else residual
    reach = float((values[:-1] + residuals[:-1]).max()) - value
    return value, residual, error, max(reach, 0.0)


def largest_eigenvalue(
    operator: Operator,
    start: Sequence[Tensor] | None = None,
    generator: torch.Generator | None = None,
    *,
    tolerance: float = 1e-3,
    max_products: int = 60,
    min_products: int = 5,
    noise: float = 1.0,
    max_vectors: int = 32,
) -> Eigenpair:
    """Largest eigenvalue and its vector (length one, shaped like the parameters).

    start: the last eigenvector. Noise of the same length is added, because a start that is an eigenvector of some
        smaller eigenvalue would never leave it, and the residual would not tell. In many dimensions the noise lies
        almost wholly in the bulk of the spectrum near zero, so it costs about two products.
    Stops when the error bound is below ``tolerance * |value|`` and no other Ritz value, raised by its own residual,
    could pass the top one by more than that. It misleads where the noise has no part in a larger eigenvector: this
    has probability zero, but an eigenvalue within the tolerance is not told apart.
    """
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    if not operator.parameters:
        raise NoCurvature("no parameter requires a gradient")
    first = _first_vector(operator, start, generator, noise)
    capacity = max(2, min(max_vectors, first.numel()))
    basis = _Basis(operator, first, capacity)
    products, converged = 0, False
    while products < max_products and not converged:
        if basis.size == capacity:
            basis.restart()
        basis.grow()
        products += 1
        value, residual, error, reach = _bounds(basis)
        exhausted = basis.overhang == 0.0 or basis.size >= first.numel()
        allowed = tolerance * abs(value)
        # The error bound trusts the gap to the next Ritz value; an eigenvalue hidden beside the top one still shows
        # in the residual, which therefore must be small too.
        settled = error <= allowed and reach <= allowed and residual <= 3 * allowed
        converged = exhausted or (products >= min_products and settled)
    _, columns, _ = basis.ritz()
    vector = columns[:, -1].to(basis.vectors) @ basis.vectors[: basis.size]
    vector = vector / torch.linalg.vector_norm(vector)
    if basis.size >= first.numel():
        residual = error = 0.0
    return Eigenpair(value, unflatten(vector, operator.parameters), residual, products, error, converged)

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
from .symmetry import refuse_asymmetry

_KEPT_AT_RESTART = 4
_MIXTURE = (1.0, 0.5, 0.35, 0.25)
_LEAST_PRODUCTS_COLD = 24


@dataclass(frozen=True)
class Eigenpair:
    """``residual`` is ``||A v - value v||`` for the unit vector v: some eigenvalue lies within it of ``value``.

    start: what to pass as ``start`` next time. It holds the vector and, with less weight, the next three, for
    eigenvalues that swap places. ``converged`` is False if the products ran out before the tolerance was met.
    """

    value: float
    vector: list[Tensor]
    residual: float
    products: int
    start: list[Tensor]
    converged: bool


class _Basis:
    """Orthonormal vectors V [m, D], the projected matrix ``V A V^T`` and the part of ``A v_m`` that sticks out of V."""

    def __init__(self, operator: Operator, start: Tensor, capacity: int):
        self.operator = operator
        self.vectors = start.new_empty(capacity, start.numel())
        self.projected = torch.zeros(capacity, capacity, dtype=torch.float64)
        self.size = 0
        self.kept = 0  # kept by the last restart: the vector after them has a part along each of them
        self.next = start
        self.overhang = math.inf

    def grow(self) -> None:
        """One product: take ``next`` in, and find the new direction by orthogonalising its image, twice.

        The first time against the two vectors of Lanczos' recurrence. The second time against all, which removes what
        rounding has left of the others.
        """
        m = self.size
        self.vectors[m] = self.next
        image = flatten(self.operator.matvec(unflatten(self.next, self.operator.parameters)))
        finite = torch.isfinite(image).all()
        basis = self.vectors[: m + 1]
        near = 0 if m <= self.kept else m - 1
        coefficients = basis[near:] @ image
        image = image - coefficients @ basis[near:]
        again = basis @ image
        image = image - again @ basis
        older = again[:near].norm()
        again[near:] += coefficients
        overhang = torch.linalg.vector_norm(image, dtype=torch.float64)
        also = [finite, overhang, older, coefficients[0], coefficients.abs().max()]
        together = torch.cat([again.double(), torch.stack([number.double() for number in also])])
        *products, is_finite, overhang, older, last, largest = together.tolist()  # the device is asked once
        if not is_finite:
            raise NoCurvature("the Hessian is not finite at this step")
        self._check_symmetry(older, last, largest, image.dtype)
        column = torch.tensor(products, dtype=torch.float64, device="cpu")
        self.projected[: m + 1, m] = column
        self.projected[m, : m + 1] = column
        self.size = m + 1
        self.overhang = overhang
        # Below rounding the direction is noise: the Krylov space is exhausted.
        if self.overhang <= 8 * torch.finfo(image.dtype).eps * float(self.projected.abs().max()):
            self.overhang = 0.0
        self.next = image / self.overhang if self.overhang > 0 else image

    def _check_symmetry(self, older: float, last: float, largest: float, dtype: torch.dtype) -> None:
        """``v_i . A v_m`` is ``v_m . A v_i``: what stuck out of the step before for the ``last`` vector, 0 for ``older`` ones."""
        if self.size <= self.kept or self.size == 0:
            return
        difference = max(abs(last - self.overhang), older)
        scale = max(float(self.projected.abs().max()), self.overhang, largest)
        refuse_asymmetry(difference, scale, dtype)

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
        self.size = self.kept = kept


def _random(like: Tensor, generator: torch.Generator) -> Tensor:
    """A direction drawn from the caller's generator, on the generator's device first: never the global state."""
    drawn = torch.randn(like.numel(), generator=generator, device=generator.device, dtype=torch.float32)
    drawn = drawn.to(like)
    return drawn / torch.linalg.vector_norm(drawn)


def _first_vector(
    operator: Operator, start: Sequence[Tensor] | None, generator: torch.Generator, noise: float
) -> tuple[Tensor, bool]:
    """The start vector with length one; and whether it contains ``start``."""
    like = flatten([p.detach() for p in operator.parameters])
    if not like.is_floating_point() or like.dtype in (torch.float16, torch.bfloat16):
        like = like.float()
    fresh, warm = _random(like, generator), False
    if start is not None:
        old = flatten(start).to(like)
        length = torch.linalg.vector_norm(old)
        if old.numel() == like.numel() and 0 < float(length) < math.inf:
            fresh, warm = old / length + noise * fresh, True
    return fresh / torch.linalg.vector_norm(fresh), warm


def _bounds(basis: _Basis) -> tuple[float, float, float]:
    """Value and residual of the top Ritz pair, and how high the other pairs might still reach above it."""
    values, _, residuals = basis.ritz()
    value, residual = float(values[-1]), float(residuals[-1])
    reach = float((values[:-1] + residuals[:-1]).max()) - value if basis.size > 1 else residual
    return value, residual, max(reach, 0.0)


def largest_eigenvalue(
    operator: Operator,
    start: Sequence[Tensor] | None = None,
    generator: torch.Generator | None = None,
    *,
    tolerance: float = 5e-3,
    max_products: int = 60,
    min_products: int = 10,
    noise: float = 1.0,
    max_vectors: int = 32,
) -> Eigenpair:
    """Largest eigenvalue and its vector (length one, shaped like the parameters).

    start: ``Eigenpair.start`` of the step before. Noise of the same length is added, because a start that is an
        eigenvector of some smaller eigenvalue would never leave it, and the residual would not tell. In many
        dimensions the noise lies almost wholly in the bulk of the spectrum near zero, and was measured to cost nothing.
    Stops when the residual is below ``tolerance * |value|`` and no other Ritz value, raised by its own residual, could
    pass the top one by more than that, after ``min_products`` at least (24 without a start): the part of a larger
    eigenvector in the noise needs them to grow. The value is far better than its residual;
    ``benchmarks/eigenvalue.py``
    counts how often it is not. What this cannot rule out: an eigenvector that is almost orthogonal to start and noise, or two
    eigenvalues closer than the tolerance.
    """
    if not operator.parameters:
        raise NoCurvature("no parameter requires a gradient")
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    first, warm = _first_vector(operator, start, generator, noise)
    least = min_products if warm else max(min_products, _LEAST_PRODUCTS_COLD)
    capacity = max(2, min(max_vectors, first.numel()))
    basis = _Basis(operator, first, capacity)
    products, converged = 0, False
    value = residual = 0.0
    tolerance = max(tolerance, 30 * torch.finfo(first.dtype).eps)  # less than rounding is never reached
    while products < max_products and not converged:
        if basis.size == capacity:
            basis.restart()
        basis.grow()
        products += 1
        value, residual, reach = _bounds(basis)
        exhausted = basis.overhang == 0.0 or basis.size >= first.numel()
        allowed = tolerance * abs(value)
        converged = exhausted or (products >= least and residual <= allowed and reach <= allowed)
    if basis.size >= first.numel():
        residual = 0.0
    vector, mixture = _top_vectors(basis)
    return Eigenpair(
        value,
        unflatten(vector, operator.parameters),
        residual,
        products,
        unflatten(mixture, operator.parameters),
        converged,
    )


def _top_vectors(basis: _Basis) -> tuple[Tensor, Tensor]:
    """The top Ritz vector, and its mixture with the next ones."""
    _, columns, _ = basis.ritz()
    weights = torch.tensor(_MIXTURE[: basis.size], dtype=columns.dtype)
    best = columns[:, -len(weights) :].flip(1)
    chosen = torch.stack([best[:, 0], best @ weights]).to(basis.vectors)
    top, mixture = chosen @ basis.vectors[: basis.size]
    return top / torch.linalg.vector_norm(top), mixture

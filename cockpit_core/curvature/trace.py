"""Trace and diagonal from products with random vectors, with a standard error.

XTrace (Epperly, Tropp and Webber, 2024, "XTrace: making the most of every sample in stochastic trace estimation"):
each of k random vectors in turn is the test vector for what the others' images do not span, so that every product is
used more than once. Here element by element, so that the estimates of layers add up to the estimate of the network.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .operators import Operator, flatten, unflatten
from .point import NoCurvature
from .symmetry import refuse_asymmetric

# The k estimates of one XTrace share most of their subspace, so their spread understates the error of their mean.
_SHARED_SUBSPACE = 1.6


@dataclass(frozen=True)
class TraceEstimate:
    """``diagonal`` [D] and its standard error per element; traces of the whole and per parameter with theirs."""

    diagonal: Tensor
    diagonal_error: Tensor
    traces: list[float]
    trace_errors: list[float]
    trace: float
    trace_error: float
    products: int
    method: str


class _Samples:
    """Mean and variance of estimates that come one after the other, without keeping them (Welford).

    The variance of a trace comes from the variances of the elements: for random signs w, ``w_j (A w)_j`` varies by
    ``sum_{k != j} a_jk^2``, and ``w^T A w`` by twice the sum of these over j (over the rows of a layer: by at most
    that). So it is an average over many elements, steady after a few probes, where the spread of a few traces is not,
    and stopping when it is small does not pick the lucky ones.
    """

    def __init__(self, sizes: list[int], like: Tensor):
        self.sizes = sizes
        self.count = 0
        self.widen = 1.0
        self.mean, self.spread = torch.zeros_like(like), torch.zeros_like(like)

    def add(self, estimate: Tensor) -> None:
        if not bool(torch.isfinite(estimate).all()):
            raise NoCurvature("the Hessian is not finite at this step")
        self.count += 1
        delta = estimate - self.mean
        self.mean += delta / self.count
        self.spread += delta * (estimate - self.mean)

    def _variance(self) -> Tensor:
        """Of the mean, per element."""
        return self.widen**2 * self.spread / (max(1, self.count - 1) * self.count)

    def finish(self, products: int, method: str) -> TraceEstimate:
        variance = self._variance()
        traces = [float(p.sum(dtype=torch.float64)) for p in self.mean.split(self.sizes)]
        errors = [math.sqrt(2 * float(p.sum(dtype=torch.float64))) for p in variance.split(self.sizes)]
        whole = math.sqrt(sum(e * e for e in errors))
        return TraceEstimate(self.mean, variance.sqrt(), traces, errors, sum(traces), whole, products, method)

    def relative_error(self) -> float:
        error = math.sqrt(2 * float(self._variance().sum(dtype=torch.float64)))
        return error / max(abs(float(self.mean.sum(dtype=torch.float64))), 1e-300)


def _signs(count: int, like: Tensor, generator: torch.Generator) -> Tensor:
    drawn = torch.randint(0, 2, (count, like.numel()), generator=generator, device=generator.device)
    return (2 * drawn - 1).to(like)


def _apply(operator: Operator, rows: Tensor, at_once: int) -> Tensor:
    """A times each row. rows: [k, D]."""
    images = []
    for part in rows.split(at_once):
        made = operator.matmat(unflatten(part, operator.parameters))
        images.append(torch.cat([m.reshape(len(part), -1) for m in made], 1))
    return torch.cat(images)


def _add_xtrace(operator: Operator, samples: _Samples, probes: int, generator: torch.Generator, at_once: int) -> None:
    """One XTrace of 2 * probes products. Rows are vectors here: Omega, Y, Q, Z are [k, D]."""
    like = samples.mean
    omega = _signs(probes, like, generator)
    images = _apply(operator, omega, at_once)  # Y
    q, r = torch.linalg.qr(images.T.double() if like.numel() <= 10_000 else images.T)
    diagonal = r.diagonal().abs()
    refuse_asymmetric((omega @ images.T).double(), like.dtype)
    if float(diagonal.min()) <= 1e-6 * float(diagonal.max()):  # the rank is below k: then plain Hutchinson is as good
        for v, image in zip(omega, images, strict=True):
            samples.add(v * image)
        return
    q = q.to(like).T.contiguous()
    z = _apply(operator, q, at_once)
    h = (q @ z.T).double()
    refuse_asymmetric(h, like.dtype)
    h = (h + h.T) / 2
    w = (q @ omega.T).double()  # [k, k], column i belongs to test vector i
    leaving = torch.linalg.inv(r.double()).T
    leaving = leaving / leaving.norm(dim=0)  # column i: the direction of the span that only vector i brought
    both = (q * z).sum(0)
    for i in range(probes):
        s = leaving[:, i]
        keep = torch.eye(probes, dtype=torch.float64, device=s.device) - torch.outer(s, s)
        x = (keep @ w[:, i]).to(like)
        alone, alone_image = s.to(like) @ q, s.to(like) @ z
        inner = (keep @ h @ keep).to(like)
        known = 2 * (both - alone * alone_image) - (q * (inner @ q)).sum(0)
        rest = images[i] - x @ z
        rest = rest - (keep @ (q @ rest).double()).to(like) @ q
        samples.add(known + omega[i] * rest)


def estimate_diagonal(
    operator: Operator,
    generator: torch.Generator,
    *,
    target: float = 0.05,
    max_products: int = 60,
    memory_budget: int = 256 * 2**20,
) -> TraceEstimate:
    """Unbiased diagonal and traces of a symmetric matrix.

    Goes on until the standard error of the trace is below ``target`` times its size, or the products are used up.
    Where the vectors of one XTrace would not fit into ``memory_budget``, plain Hutchinson, which keeps none of them.
    Misleads for single elements: the error of an element is of the size of its row, not of the element.
    """
    like = flatten([p.detach() for p in operator.parameters])
    like = like if like.dtype in (torch.float32, torch.float64) else like.float()
    samples = _Samples([p.numel() for p in operator.parameters], torch.zeros_like(like))
    fits = memory_budget // (5 * like.numel() * like.element_size())
    probes = int(min(10, fits, max_products // 2, like.numel() // 2))
    at_once = int(max(1, min(8, fits, memory_budget // max(1, operator.column_bytes))))
    products = 0
    if probes < 4:
        before: tuple[Tensor, Tensor] | None = None
        while products < max_products:
            v = _signs(1, like, generator)[0]
            image = flatten(operator.matvec(unflatten(v, operator.parameters)))
            if products == 1 and before is not None:
                pair, images = torch.stack([before[0], v]), torch.stack([before[1], image])
                refuse_asymmetric((pair @ images.T).double(), like.dtype)
            before = (v, image) if products == 0 else None
            samples.add(v * image)
            products += 1
            if products >= 10 and samples.relative_error() <= target:
                break
        return samples.finish(products, "Hutchinson")
    samples.widen = _SHARED_SUBSPACE
    while products + 2 * probes <= max_products:
        _add_xtrace(operator, samples, probes, generator, at_once)
        products += 2 * probes
        if samples.relative_error() <= target:
            break
    return samples.finish(products, "XTrace")

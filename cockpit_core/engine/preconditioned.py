"""The largest eigenvalue of ``P^-1/2 (H + decay) P^-1/2`` on the step's own batch, P what the optimizer divided by.

It has the eigenvalues of ``P^-1 H``, which decide whether preconditioned descent is stable, and is symmetric, which Lanczos
needs. A step of one backward pass keeps one graph of its gradient for all products; in a step of several, the passes
are repeated for each product, one after the other. Their Hessians add up, and only one graph exists at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from cockpit_core.curvature import Eigenpair, NoCurvature, largest_eigenvalue
from cockpit_core.curvature.point import explained
from cockpit_core.quantities.measured import Preconditioner

SMALL = 1000
"""With up to this many parameters products are cheap, and even eigenvalues that differ by a percent are told apart."""
PATIENT = {"tolerance": 1e-7, "max_products": 128, "max_vectors": 128}


class PreconditionedHessian:
    """A symmetric matrix over the parameters with a preconditioner, known by its products."""

    column_bytes, note = 0, ""

    def __init__(
        self,
        losses: Callable[[], Iterable[Tensor]],
        passes: int,
        parameters: Mapping[str, Tensor],
        preconditioners: Mapping[str, Preconditioner],
    ):
        self.losses, self.keeps = losses, passes == 1
        self.parameters = [parameters[name] for name in preconditioners]
        self.roots = [
            p.denominators.to(q.dtype).rsqrt() for p, q in zip(preconditioners.values(), self.parameters, strict=True)
        ]
        self.decays = [p.decay for p in preconditioners.values()]
        self.kept: list[list[Tensor | None]] = []

    def _gradients(self) -> Iterable[list[Tensor | None]]:
        """With their graphs, pass by pass."""
        if self.kept:
            yield from self.kept
            return
        for loss in self.losses():
            gradients: list[Tensor | None] = [
                *torch.autograd.grad(loss, self.parameters, create_graph=True, allow_unused=True)
            ]
            if self.keeps:
                self.kept.append(gradients)
            yield gradients

    def matvec(self, vector: Sequence[Tensor]) -> list[Tensor]:
        v = [root * part for root, part in zip(self.roots, vector, strict=True)]
        image = [decay * part for decay, part in zip(self.decays, v, strict=True)]
        with explained(), sdpa_kernel(SDPBackend.MATH), torch.enable_grad():
            for gradient in self._gradients():
                pairs = [(g, part) for g, part in zip(gradient, v, strict=True) if g is not None and g.requires_grad]
                if not pairs:
                    continue
                along = [g for g, _ in pairs]
                seeds = [part.to(g.dtype) for g, part in pairs]
                bent = torch.autograd.grad(along, self.parameters, seeds, retain_graph=True, allow_unused=True)
                image = [h if b is None else h + b.detach() for h, b in zip(image, bent, strict=True)]
        return [root * part for root, part in zip(self.roots, image, strict=True)]

    def matmat(self, vectors: Sequence[Tensor]) -> list[Tensor]:
        columns = [self.matvec([v[k] for v in vectors]) for k in range(len(vectors[0]))]
        return [torch.stack(parts) for parts in zip(*columns, strict=True)]

    def close(self) -> None:
        self.kept.clear()


def find_largest(
    operator: PreconditionedHessian, start: list[Tensor] | None, generator: torch.Generator, budget: int
) -> Eigenpair:
    if any(p.dtype in (torch.float16, torch.bfloat16) for p in operator.parameters):
        raise NoCurvature("parameters in half precision give second derivatives that are mostly rounding")
    size = sum(p.nbytes for p in operator.parameters)
    effort: dict[str, Any] = {"max_vectors": max(8, min(32, budget // 2 // max(size, 1)))}
    if sum(p.numel() for p in operator.parameters) <= SMALL:
        effort = PATIENT
    try:
        return largest_eigenvalue(operator, start, generator, **effort)
    finally:
        operator.close()

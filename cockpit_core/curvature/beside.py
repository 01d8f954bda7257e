"""Gauss-Newton where the loss uses parameters beside the network's outputs: penalties, learned weights of losses.

Such a parameter counts as an output of the network that is the parameter itself. With ``y`` the outputs proper, ``t`` the
parameters that the loss uses, and ``J`` the derivative of both by all parameters, ``G = J^T [d^2 loss / d(y, t)^2] J``:
Gauss-Newton as usual, plus the Hessian of the loss by t. A penalty ``r(t)`` adds its own Hessian. A learned weight,
which the
network itself does not use, adds its second derivative to the diagonal, and its mixed derivatives with the outputs
off the diagonal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .operators import GGNOperator, HessianOperator, Operator, differentiable_gradient
from .point import NoCurvature, Point, explained

_MOST = 2000  # a penalty may couple so many parameters; with more, its diagonal takes too many products


@dataclass(frozen=True)
class Beside:
    """``penalty``: a function of the parameters alone, part of the loss. ``own``: parameters that the network does not use.

    ``network``: the loss as a function of the outputs, all else held fixed. ``outputs``: the user's own tensors.
    """

    network: Point
    outputs: Sequence[Tensor]
    penalty: Tensor | None
    own: dict[str, Tensor]
    loss: Tensor

    @property
    def shared(self) -> dict[str, Tensor]:
        """The parameters that the network uses."""
        return {name: p for name, p in self.network.trainable.items() if name not in self.own}

    def refuse_unless_whole(self, slopes: Sequence[Tensor | None]) -> None:
        """The gradient of the loss must be the sum of those of the network and of the penalty; else a part of the
        loss was overlooked."""
        shared = list(self.shared.values())
        whole = _gradient([self.loss], shared, [torch.ones_like(self.loss)])
        pairs = [(y, s.detach()) for y, s in zip(self.outputs, slopes, strict=True) if s is not None]
        parts = _gradient([y for y, _ in pairs], shared, [s for _, s in pairs])
        if self.penalty is not None and self.penalty.requires_grad:
            more = _gradient([self.penalty], shared, [torch.ones_like(self.penalty)])
            parts = [p + m for p, m in zip(parts, more, strict=True)]
        away = sum(float((w - p).double().square().sum()) for w, p in zip(whole, parts, strict=True))
        if not away <= 1e-8 * sum(float(w.double().square().sum()) for w in whole):
            raise NoCurvature("the loss uses parameters beside the outputs in a way that its graph does not tell apart")


def _gradient(roots: Sequence[Tensor], inputs: Sequence[Tensor], seeds: Sequence[Tensor]) -> list[Tensor]:
    with explained():
        gradients = torch.autograd.grad(list(roots), list(inputs), list(seeds), retain_graph=True, allow_unused=True)
    return [torch.zeros_like(p) if f is None else f.detach() for f, p in zip(gradients, inputs, strict=True)]


def diagonal_beside(beside: Beside) -> dict[str, Tensor]:
    """What is added to the diagonal of the network's Gauss-Newton matrix."""
    diagonals: dict[str, Tensor] = {}
    if beside.penalty is not None:
        diagonals |= hessian_diagonal(beside.penalty, beside.shared)
    return diagonals | hessian_diagonal(beside.loss, beside.own)


def hessian_diagonal(scalar: Tensor, parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    """Exact: from two products where no two parameters are coupled, else from one product for each."""
    inputs = list(parameters.values())
    if not inputs:
        return {}
    slopes = differentiable_gradient(scalar, inputs)
    generator = torch.Generator().manual_seed(2021)  # of its own: the values do not depend on it
    ones = [torch.ones_like(p) for p in inputs]
    other = [torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p) for p in inputs]
    first, second = (_product(slopes, inputs, vector) for vector in (ones, other))
    size = sum(float(s.double().square().sum()) for s in second)
    away = sum(float((s - f * o).double().square().sum()) for s, f, o in zip(second, first, other, strict=True))
    if away <= 1e-8 * size:
        return dict(zip(parameters, first, strict=True))
    if sum(p.numel() for p in inputs) > _MOST:
        raise NoCurvature(
            "a penalty of the loss couples too many parameters with each other for its diagonal to be computed"
        )
    return dict(zip(parameters, _one_by_one(slopes, inputs), strict=True))


def _one_by_one(slopes: list[Tensor | None], inputs: list[Tensor]) -> list[Tensor]:
    diagonals = [torch.zeros_like(p) for p in inputs]
    for k, p in enumerate(inputs):
        for j in range(p.numel()):
            unit = [torch.zeros_like(q) for q in inputs]
            unit[k].view(-1)[j] = 1.0
            diagonals[k].view(-1)[j] = _product(slopes, inputs, unit)[k].reshape(-1)[j]
    return diagonals


def _product(slopes: Sequence[Tensor | None], inputs: Sequence[Tensor], vector: Sequence[Tensor]) -> list[Tensor]:
    """The derivative of ``<slopes, vector>`` by the inputs; zeros where there is none."""
    pairs = [(s, v) for s, v in zip(slopes, vector, strict=True) if s is not None and s.requires_grad]
    if not pairs:
        return [torch.zeros_like(p) for p in inputs]
    with explained():
        products = torch.autograd.grad(
            [s for s, _ in pairs], list(inputs), [v.to(s.dtype) for s, v in pairs], retain_graph=True, allow_unused=True
        )
    return [torch.zeros_like(p) if f is None else f.detach().to(p.dtype) for f, p in zip(products, inputs, strict=True)]


class BesideOperator:
    """Gauss-Newton of the network, and what the parameters beside it add."""

    note = ""

    def __init__(self, beside: Beside):
        self._beside, self._names = beside, list(beside.network.trainable)
        self.parameters = list(beside.network.trainable.values())
        self._network: Operator = GGNOperator(beside.network)
        self.column_bytes = self._network.column_bytes
        self._penalty: Operator | None = None
        shared = beside.shared
        self._shared = [self._names.index(n) for n in shared]
        self._own = [self._names.index(n) for n in beside.own]
        if beside.penalty is not None and beside.penalty.requires_grad:
            self._penalty = HessianOperator(Point(beside.penalty, shared, beside.network.batch_size))
        self._slopes = differentiable_gradient(beside.loss, [*beside.outputs, *beside.own.values()])

    def matvec(self, vector: Sequence[Tensor]) -> list[Tensor]:
        image = self._network.matvec(vector)
        if self._penalty is not None:
            more = self._penalty.matvec([vector[i] for i in self._shared])
            for i, m in zip(self._shared, more, strict=True):
                image[i] = image[i] + m
        return self._with_own(vector, image) if self._own else image

    def _with_own(self, vector: Sequence[Tensor], image: list[Tensor]) -> list[Tensor]:
        """The blocks of the learned weights: with each other, and with the outputs, there and back."""
        outputs, own = list(self._beside.outputs), list(self._beside.own.values())
        moved = self._pushed(vector, outputs)
        theirs = [vector[i] for i in self._own]
        back = _product(self._slopes, own, [*moved, *theirs])
        for i, b in zip(self._own, back, strict=True):
            image[i] = image[i] + b
        at_outputs = _product(self._slopes[len(outputs) :], outputs, theirs)
        with explained():
            more = torch.autograd.grad(outputs, self.parameters, at_outputs, retain_graph=True, allow_unused=True)
        return [f if m is None else f + m.detach() for f, m in zip(image, more, strict=True)]

    def _pushed(self, vector: Sequence[Tensor], outputs: list[Tensor]) -> list[Tensor]:
        """``J v`` at the outputs, as the derivative of ``J^T u`` by u."""
        with torch.enable_grad(), explained():
            dummies = [torch.zeros_like(y, requires_grad=True) for y in outputs]
            pulled = torch.autograd.grad(outputs, self.parameters, dummies, create_graph=True, allow_unused=True)
        return _product(list(pulled), dummies, vector)

    def matmat(self, vectors: Sequence[Tensor]) -> list[Tensor]:
        columns = [self.matvec([v[k] for v in vectors]) for k in range(len(vectors[0]))]
        return [torch.stack(parts) for parts in zip(*columns, strict=True)]

    def close(self) -> None:
        self._network.close()
        if self._penalty is not None:
            self._penalty.close()
        self._slopes = []

"""A loss as a function of the network's outputs, where only its graph is known and not the function that made it.

At the outputs ``y0`` of this step, ``l(y) = l(y0) + <g, y - y0> + 1/2 <y - y0, H (y - y0)>`` has the value, the slope and the
curvature of the loss, and nothing else is asked of it. ``g`` and the products with ``H`` come from the user's own graph
between the outputs and the loss; the network below is not touched. So the forward pass can be repeated with other
kernels, or on a part of the batch, and ``l`` put on top of it.

One output may be computed from another: the code of an autoencoder and what it is decoded to. The gradient that autograd gives
for the lower one then has what the upper one passes on; to the loss they are separate variables, so nothing is let
through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function
from torch.autograd.graph import Node

from .autograd_graph import reachable
from .point import explained

Product = Callable[[Tensor], Tensor]


class _Linear(Function):
    """``H d`` for a symmetric H, differentiable as often as one likes."""

    @staticmethod
    def forward(d: Tensor, product: Product) -> Tensor:
        return product(d)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.product = inputs[1]

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        return _Linear.apply(slope, ctx.product), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], d: Tensor, product: Product) -> tuple[Tensor, int]:
        rows, many = d.movedim(in_dims[0], 0), getattr(product, "__self__", None)
        if isinstance(many, LossAtOutputs) and not torch.is_grad_enabled():
            return many.products(rows), 0
        return torch.stack([_Linear.apply(row, product) for row in rows]), 0


class _HalfSquare(Function):
    """``1/2 <d, H d>``, a scalar."""

    @staticmethod
    def forward(d: Tensor, product: Product) -> Tensor:
        return (d * product(d)).sum() / 2 if bool(d.any()) else d.new_zeros(())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.product = inputs[1]

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        (d,) = ctx.saved_tensors
        return slope * _Linear.apply(d, ctx.product), None


def _stop(arrived: Sequence[Tensor | None]) -> tuple[None, ...]:
    return (None,) * len(arrived)


class LossAtOutputs:
    """``loss_of(values)`` of a Point. ``outputs`` are the user's tensors, in whose graph the loss lies; ``values`` has them
    joined as ``join`` does, which is linear, and ``part`` undoes it."""

    def __init__(
        self,
        loss: Tensor,
        outputs: Sequence[Tensor],
        join: Callable[[Sequence[Tensor]], Tensor],
        part: Callable[[Tensor], list[Tensor]],
    ):
        self._outputs, self._join, self._part = list(outputs), join, part
        self._loss = loss

    @cached_property
    def slopes(self) -> list[Tensor | None]:
        """The gradient of the loss at the outputs, with its graph. Made when it is first asked for: it takes as much memory
        as the outputs, several times."""
        with torch.enable_grad(), explained(), self._held_apart():
            return list(torch.autograd.grad(self._loss, self._outputs, create_graph=True, allow_unused=True))

    @cached_property
    def _upper(self) -> list[Node]:
        """The nodes of outputs that are computed from other ones."""
        nodes = list(dict.fromkeys(y.grad_fn for y in self._outputs if y.grad_fn is not None))
        below = {node: set(reachable([f for f, _ in node.next_functions])) for node in nodes if len(nodes) > 1}
        return [node for node, others in below.items() if any(other in others for other in nodes if other is not node)]

    @contextmanager
    def _held_apart(self) -> Iterator[None]:
        """Inside, what arrives at an output is not passed on to the outputs below it."""
        with ExitStack() as stack:
            for node in self._upper:
                stack.callback(node.register_prehook(_stop).remove)
            yield

    @cached_property
    def _slope(self) -> Tensor:
        pairs = zip(self._outputs, self.slopes, strict=True)
        return self._join([torch.zeros_like(y) if s is None else s.detach() for y, s in pairs])

    @cached_property
    def _at(self) -> Tensor:
        return self._join([y.detach() for y in self._outputs])

    def _product(self, d: Tensor) -> Tensor:
        with torch.no_grad():
            seeds = [piece.to(y.dtype) for piece, y in zip(self._part(d.detach()), self._outputs, strict=True)]
            bent = [(s, seed) for s, seed in zip(self.slopes, seeds, strict=True) if s is not None and s.requires_grad]
            if not bent:
                return torch.zeros_like(d)
            with explained(), self._held_apart():
                slopes = torch.autograd.grad(
                    [s for s, _ in bent], self._outputs, [v for _, v in bent], retain_graph=True, allow_unused=True
                )
            full = [torch.zeros_like(y) if f is None else f for y, f in zip(self._outputs, slopes, strict=True)]
            return self._join([f.detach() for f in full]).to(d.dtype)

    def products(self, rows: Tensor) -> Tensor:
        """``H d`` for each row: all at once where the nodes of the loss allow, else one after the other."""
        bent = [s for s in self.slopes if s is not None and s.requires_grad]
        if len(self._outputs) == 1 and bent:
            try:
                (slopes,) = torch.autograd.grad(
                    bent, self._outputs, [rows.detach().to(bent[0].dtype)], retain_graph=True, is_grads_batched=True
                )
                return slopes.detach().to(rows.dtype)
            except (RuntimeError, UserWarning):  # vmap lacks a rule for one of them
                pass
        return torch.stack([self._product(row) for row in rows])

    def __call__(self, values: Tensor) -> Tensor:
        d = values - self._at.to(values.dtype)
        linear = (d * self._slope.to(values.dtype)).sum()
        return self._loss.detach().to(values.dtype) + linear + _HalfSquare.apply(d, self._product)

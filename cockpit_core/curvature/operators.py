"""Products of the Hessian, or of the generalised Gauss-Newton matrix, with vectors: matrices that are never formed.

One gradient graph per operator, built once, used for every product, freed by ``close``. Where it would exceed the
memory budget, the batch is taken in parts (``InParts``). The user's graph is kept (``retain_graph``), ``p.grad`` is never
touched, and nothing draws random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .autograd_graph import activation_bytes, reachable
from .point import NoCurvature, Point, explained
from .stems import Stemmed


class Operator(Protocol):
    """A symmetric matrix over a list of parameters."""

    parameters: list[Tensor]
    column_bytes: int
    """Bytes that each further vector takes in ``matmat``."""
    note: str
    """What the user should know about how this was done; mostly nothing."""

    def matvec(self, vector: Sequence[Tensor]) -> list[Tensor]: ...

    def matmat(self, vectors: Sequence[Tensor]) -> list[Tensor]: ...

    def close(self) -> None: ...


Gradients = list[Tensor | None]


def gradient_of_one(outputs: Gradients, leaf: Tensor, seeds: Sequence[Tensor], batched: bool = False) -> Tensor:
    """``J^T seeds`` with respect to a single tensor; zero where it does not matter."""
    (gradient,) = _gradient(outputs, [leaf], seeds, batched)
    return leaf.new_zeros((seeds[0].shape[:1] if batched else ()) + leaf.shape) if gradient is None else gradient


def _gradient(
    outputs: Sequence[Tensor | None], inputs: Sequence[Any], seeds: Sequence[Tensor], batched: bool = False
) -> Gradients:
    """``J^T seeds``, None where no output depends on an input; the graph survives."""
    pairs = [(o, s) for o, s in zip(outputs, seeds, strict=True) if o is not None and o.requires_grad]
    if not pairs:
        return [None] * len(inputs)
    with explained():
        gradients = torch.autograd.grad(
            [o for o, _ in pairs],
            list(inputs),
            [s.to(o.dtype) for o, s in pairs],
            retain_graph=True,
            allow_unused=True,
            is_grads_batched=batched,
        )
    return [None if f is None else f.detach() for f in gradients]


def differentiable_gradient(loss: Tensor, inputs: Sequence[Any]) -> Gradients:
    """Gradients with a graph of their own. ``autograd.grad``, because ``backward(create_graph=True)`` leaks."""
    with torch.enable_grad(), explained():
        return list(torch.autograd.grad(loss, list(inputs), create_graph=True, allow_unused=True))


def refuse_once_differentiable(loss: Tensor) -> None:
    """Torch only notices if the gradient that arrives has a graph; else the second derivative is silently zero."""
    for node in reachable([loss.grad_fn]):
        backward = getattr(getattr(node, "_forward_cls", None), "backward", None)
        if getattr(backward, "__code__", None) is _ONCE:
            raise NoCurvature("a custom function in the network is marked as differentiable only once")


_ONCE = once_differentiable(lambda ctx, *grads: grads).__code__


class _Products:
    """Several vectors at once where vmap knows every operation of the graph, one after the other where it does not."""

    parameters: list[Tensor]
    column_bytes = 0
    note = ""
    _batched = True

    def _apply(self, vectors: list[Tensor], batched: bool) -> list[Tensor]:
        raise NotImplementedError  # each operator below has its own

    def matvec(self, vector: Sequence[Tensor]) -> list[Tensor]:
        return self._apply(list(vector), batched=False)

    def matmat(self, vectors: Sequence[Tensor]) -> list[Tensor]:
        """``vectors`` and the result: per parameter one tensor [columns, *shape]."""
        if self._batched and len(vectors[0]) > 1:
            try:
                return self._apply(list(vectors), batched=True)
            except NoCurvature:
                raise
            except (RuntimeError, UserWarning):  # vmap lacks a rule for some operation: remember, and loop
                self._batched = False
        columns = [self.matvec([v[k] for v in vectors]) for k in range(len(vectors[0]))]
        return [torch.stack(parts) for parts in zip(*columns, strict=True)]


class HessianOperator(_Products):
    """``H v``: derivative of the inner product of the gradient with v (Pearlmutter, 1994). Scale of ``point.loss``."""

    def __init__(self, point: Point):
        self.parameters = list(point.trainable.values())
        self.column_bytes = activation_bytes(point.loss)
        refuse_once_differentiable(point.loss)
        with explained():
            self._ways = Stemmed(point.loss, self.parameters)
        self._gradients = differentiable_gradient(point.loss, self._ways.inputs)
        self._ways.learn(self._gradients)

    def _apply(self, vectors: list[Tensor], batched: bool) -> list[Tensor]:
        if all(gradient is None for gradient in self._gradients):  # a loss, or a part of it, that no parameter reaches
            return [torch.zeros_like(vector) for vector in vectors]
        bent = _gradient(self._gradients, self._ways.inputs, self._ways.push(vectors, batched), batched)
        return self._ways.pull(bent, batched)

    def close(self) -> None:
        self._gradients = []
        self._ways.close()


class GGNOperator(_Products):
    """``J^T (d^2 loss / d outputs^2) J v`` with J the Jacobian of the outputs (Schraudolph, 2002).

    ``J v`` is the derivative of ``J^T u`` with respect to the dummy u, so two backward passes replace forward mode,
    which many operations lack.
    """

    def __init__(self, point: Point):
        if point.outputs is None or point.loss_of is None:
            raise NoCurvature("Gauss-Newton needs a loss that is a function of the model's outputs alone")
        self.parameters = list(point.trainable.values())
        self.column_bytes = activation_bytes(point.loss)
        self._outputs = point.outputs
        with torch.enable_grad(), explained():
            self._ways = Stemmed(point.outputs, self.parameters)
            self._dummy = torch.zeros_like(point.outputs, requires_grad=True)
            self._pullback: Gradients = list(
                torch.autograd.grad(point.outputs, self._ways.inputs, self._dummy, create_graph=True, allow_unused=True)
            )
            self._leaf = point.outputs.detach().clone().requires_grad_()
            self._slope = differentiable_gradient(point.loss_of(self._leaf), [self._leaf])

    def _apply(self, vectors: list[Tensor], batched: bool) -> list[Tensor]:
        seeds = self._ways.push(vectors, batched)
        pushed = gradient_of_one(self._pullback, self._dummy, seeds, batched)
        bent = gradient_of_one(self._slope, self._leaf, [pushed], batched)
        return self._ways.pull(_gradient([self._outputs], self._ways.inputs, [bent], batched), batched)

    def close(self) -> None:
        self._pullback, self._slope = [], []
        self._ways.close()
        del self._outputs, self._dummy, self._leaf


class InParts:
    """The sum over parts of the batch, each on its own graph, which is built for every product and freed after it.

    Takes the forward and the gradient again for every product, about twice the time, and the memory of one part.
    """

    def __init__(self, point: Point, make: Callable[[Point], Operator], size: int):
        assert point.part is not None
        self.parameters = list(point.trainable.values())
        self._part, self._make = point.part, make
        self._bounds = [(lo, min(lo + size, point.batch_size)) for lo in range(0, point.batch_size, size)]
        first = make(point.part(*self._bounds[0]))  # what cannot be had is refused now
        self.column_bytes = first.column_bytes
        first.close()
        self.note = f"{len(self._bounds)} parts of the batch, one after the other, to stay within memory_budget"

    def _sum(self, product: Callable[[Operator], list[Tensor]]) -> list[Tensor]:
        total: list[Tensor] = []
        for lo, hi in self._bounds:
            operator = self._make(self._part(lo, hi))
            part = product(operator)
            operator.close()
            # Not in place: where the gradient is linear in a parameter, the result may be the vector itself.
            total = [t + f for t, f in zip(total, part, strict=True)] if total else part
        return total

    def matvec(self, vector: Sequence[Tensor]) -> list[Tensor]:
        return self._sum(lambda operator: operator.matvec(vector))

    def matmat(self, vectors: Sequence[Tensor]) -> list[Tensor]:
        return self._sum(lambda operator: operator.matmat(vectors))

    def close(self) -> None:
        pass  # nothing is kept


# Bytes that the graph of the gradient and a product through it take, in bytes of activations: 1.3 was measured on
# chains of convolutions and ReLUs. A part of the batch has its activations on top, once more.
_PER_ACTIVATION, _PER_ACTIVATION_OF_PART = 1.5, 2.5


def parts_needed(point: Point, memory_budget: int) -> int:
    """In how many parts of the batch the graph of a gradient stays within the budget; 1: in one."""
    activations = activation_bytes(point.loss)
    if _PER_ACTIVATION * activations <= memory_budget or point.batch_size < 2:
        return 1
    return min(point.batch_size, math.ceil(_PER_ACTIVATION_OF_PART * activations / max(1, memory_budget)))


def make_operator(point: Point, kind: str, memory_budget: int) -> Operator:
    """The Hessian ("hessian") or Gauss-Newton at this point, in as many parts as the budget asks for."""
    make: Callable[[Point], Operator] = HessianOperator if kind == "hessian" else GGNOperator
    parts = parts_needed(point, memory_budget)
    if parts == 1:
        return make(point)
    reason = "the loss is not computed by the model and a loss module alone"
    if point.part is not None:
        try:
            return InParts(point, make, math.ceil(point.batch_size / parts))
        except NoCurvature as obstacle:
            reason = str(obstacle)
    operator = make(point)
    needed = _PER_ACTIVATION * activation_bytes(point.loss) / 2**20
    operator.note = f"about {needed:.0f} MB beyond memory_budget, because {reason}"
    return operator


def flatten(parts: Sequence[Tensor]) -> Tensor:
    """One vector [D] (or matrix [columns, D]) in the order of the operator's parameters."""
    return torch.cat([p.reshape(-1) for p in parts])


def unflatten(vector: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """The reverse of ``flatten``; a leading dimension of columns is kept."""
    pieces = vector.split([p.numel() for p in like], dim=-1)
    return [piece.reshape(vector.shape[:-1] + p.shape) for piece, p in zip(pieces, like, strict=True)]

"""Cross entropy over a large vocabulary, read from the graph of the loss. It never holds more than one matrix of the
size of the logits.

Above its ``log_softmax`` such a loss is linear: a sum of chosen entries with weights. With g its gradient by the entries of a
position, the Hessian by the logits z is ``c (diag(p) - p p^T)``, ``c = -sum(g)``, and nothing else is needed to draw columns.
Tokens of a vocabulary of 50,000 take so much memory that evaluating the loss once more, to look at its products, is too much.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from .autograd_graph import kind_of, reachable, variable_of
from .point import NoCurvature, Point, explained
from .signs import random_signs

LARGE = 2**22
"""From this many numbers in the outputs on, the loss is read this way."""
_CHUNK = 2**22  # of them at a time
_LINEAR = set(
    "NllLoss NllLoss2D Mean Sum Neg Mul Div Add Sub View UnsafeView Squeeze Unsqueeze Expand ToCopy MaskedFill".split()
)
_SAME_ENTRIES = set(
    """View UnsafeView Reshape Permute Transpose T Squeeze Unsqueeze Slice Select Narrow Alias ToCopy Clone AsStrided
    Index IndexSelect""".split()
)


class TokenLoss:
    """``count``: columns per sample that the whole Hessian would take."""

    def __init__(self, point: Point, node: Node):
        assert point.outputs is not None
        self._outputs, self._node = point.outputs, node
        self._dim: int = _signed(node._saved_dim)  # type: ignore[attr-defined]
        with explained():
            (slope,) = torch.autograd.grad(point.loss, [GradientEdge(node, 0)], retain_graph=True)
        weight = -slope.sum(self._dim, keepdim=True)
        del slope
        if not bool(torch.isfinite(weight).all()):
            raise NoCurvature("the loss is not finite at this step")
        if bool((weight < 0).any()):
            raise NoCurvature("the loss is not convex in the outputs: Monte-Carlo Gauss-Newton is not defined")
        self._root_weight = weight.sqrt_()
        logs = self._logs
        self.classes = logs.shape[self._dim]
        self.count = (self.classes - 1) * (logs.numel() // self.classes // point.batch_size)

    @property
    def _logs(self) -> Tensor:
        return self._node._saved_result.detach()  # type: ignore[attr-defined]

    def draw(self, generator: torch.Generator) -> Tensor:
        """One column ``S eps`` with random signs eps, shaped like the outputs."""
        logs = self._logs
        column = torch.empty_like(logs)
        moved, logs = column.movedim(self._dim, -1), logs.movedim(self._dim, -1)
        weights = self._root_weight.movedim(self._dim, -1)
        rows = max(1, _CHUNK // math.prod(logs.shape[1:]))
        for part in (slice(b, b + rows) for b in range(0, len(logs), rows)):
            u = logs[part].div(2).exp_()
            drawn = random_signs(tuple(u.shape), u, generator)
            drawn -= u * (u * drawn).sum(-1, keepdim=True)
            moved[part] = drawn.mul_(u).mul_(weights[part])
        return self._to_outputs(column)

    def _to_outputs(self, column: Tensor) -> Tensor:
        """From the logits as the loss takes them to the outputs, of which they are entries."""
        below, number = self._node.next_functions[0]
        assert below is not None
        outputs = self._outputs
        if below is outputs.grad_fn and number == outputs.output_nr:
            return column
        start: Any = GradientEdge(below, number)
        (slope,) = torch.autograd.grad([start], [outputs], [column.to(outputs.dtype)], retain_graph=True)
        return slope.detach()


def read_tokens(point: Point) -> TokenLoss | None:
    """None where the graph does not say that the loss is a cross entropy of entries of the outputs."""
    if point.outputs is None or point.outputs.grad_fn is None or point.outputs.numel() < LARGE:
        return None
    above = reachable([point.loss.grad_fn], stop=[point.outputs.grad_fn])
    softmaxes = [node for node in above if kind_of(node) == "LogSoftmax"]
    if len(softmaxes) != 1 or point.cut not in ((), (point.outputs.grad_fn,)):
        return None
    linear = reachable([point.loss.grad_fn], stop=softmaxes)
    if any(kind_of(node) not in _LINEAR or variable_of(node) is not None for node in linear):
        return None
    if any(kind_of(n) in ("Mul", "Div") and sum(f is not None for f, _ in n.next_functions) > 1 for n in linear):
        return None
    between = reachable([f for f, _ in softmaxes[0].next_functions], stop=[point.outputs.grad_fn])
    if any(kind_of(node) not in _SAME_ENTRIES for node in between) or point.outputs.grad_fn in linear:
        return None
    return TokenLoss(point, softmaxes[0])


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value

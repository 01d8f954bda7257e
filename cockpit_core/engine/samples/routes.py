"""From the model's outputs to what the loss was given: views and a few functions, read from the graph and done again.

``loss_fn(model(x).view(-1, classes), y.view(-1))`` does not take the model's own output. To evaluate such a loss at other
parameters, what lies between is read from the autograd graph, node by node. A node that is not known here ends the search
with a reason: nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

LONGEST = 32  # nodes between an output and the loss
SIGNED = 2**63
WRAPPER = "BackwardHookFunctionBackward"
"""Torch puts this node, which does nothing, around what a module with a full backward hook takes and gives."""


class NoRoute(RuntimeError):
    """The message says what stands between the model's outputs and the loss."""


Step = Callable[[Tensor], Tensor]
Place = tuple[Any, int]
"""A node of the graph, and which of its outputs."""


@dataclass
class Route:
    """``end`` names one of the model's outputs; ``steps`` lead from it to an argument of the loss."""

    end: Any
    steps: list[Step] = field(default_factory=list)

    def follow(self, output: Tensor) -> Tensor:
        for step in self.steps:
            output = step(output)
        return output


def find_route(tensor: Tensor, ends: dict[Place, Any]) -> Route:
    return find_route_from((tensor.grad_fn, tensor.output_nr), ends)


def find_route_from(place: Place, ends: dict[Place, Any]) -> Route:
    steps: list[Step] = []
    while place not in ends:
        node = place[0]
        if node is None or not node.next_functions or len(steps) == LONGEST:
            raise NoRoute("the loss takes something that is not an output of the model")
        if node.name() == WRAPPER:
            place = node.next_functions[place[1]]
            continue
        steps.append(read_step(node))
        place = node.next_functions[0]
    return Route(ends[place], steps[::-1])


def read_step(node: Any) -> Step:
    """The function whose backward this node is; NoRoute for one that is not known here."""
    name = node.name()
    constant = all(other is None for other, _ in node.next_functions[1:])
    if name in READERS and constant:
        return READERS[name](node)
    raise NoRoute(f"{name.removesuffix('0').removesuffix('Backward')} stands between the model's output and the loss")


def signed(value: int) -> int:
    """torch shows -1 as 2^64 - 1."""
    return value - 2 * SIGNED if value >= SIGNED else value


def reshape(node: Any) -> Step:
    shape = tuple(node._input_metadata[0].shape)
    return lambda x: x.reshape(shape)


def transpose(node: Any) -> Step:
    first, second = signed(node._saved_dim0), signed(node._saved_dim1)
    return lambda x: x.transpose(first, second)


def permute(node: Any) -> Step:
    dims = tuple(signed(dim) for dim in node._saved_dims)
    return lambda x: x.permute(dims)


def cut(node: Any) -> Step:
    dim, window = signed(node._saved_dim), slice(signed(node._saved_start), find_end(node), node._saved_step)
    return lambda x: x.movedim(dim, 0)[window].movedim(0, dim)


def find_end(node: Any) -> int | None:
    """``x[2:]`` ends at the largest number there is."""
    return None if node._saved_end == SIGNED - 1 else signed(node._saved_end)


def select(node: Any) -> Step:
    dim, index = signed(node._saved_dim), signed(node._saved_index)
    return lambda x: x.select(dim, index)


def convert(node: Any) -> Step:
    dtype = node._input_metadata[0].dtype
    return lambda x: x.to(dtype)


def multiply(node: Any) -> Step:
    factor = node._saved_other
    return lambda x: x * factor


def divide(node: Any) -> Step:
    factor = node._saved_other
    return lambda x: x / factor


def along_dim(function: Callable[..., Tensor]) -> Callable[[Any], Step]:
    return lambda node: partial(function, dim=signed(node._saved_dim))


def plain(function: Step) -> Callable[[Any], Step]:
    return lambda node: function


VIEWS = ("View", "UnsafeView", "ReshapeAlias", "Unsqueeze", "Squeeze", "Alias", "Clone")
READERS: dict[str, Callable[[Any], Step]] = {
    **{f"{name}Backward0": reshape for name in VIEWS},
    "SqueezeBackward1": reshape,
    "SqueezeBackward2": reshape,
    "TransposeBackward0": transpose,
    "TBackward0": plain(torch.t),
    "PermuteBackward0": permute,
    "SliceBackward0": cut,
    "SelectBackward0": select,
    "ToCopyBackward0": convert,
    "MulBackward0": multiply,
    "DivBackward0": divide,
    "SigmoidBackward0": plain(torch.sigmoid),
    "TanhBackward0": plain(torch.tanh),
    "ReluBackward0": plain(torch.relu),
    "ExpBackward0": plain(torch.exp),
    "LogSoftmaxBackward0": along_dim(torch.log_softmax),
    "SoftmaxBackward0": along_dim(torch.softmax),
}

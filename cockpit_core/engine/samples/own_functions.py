"""Functions of the user (``torch.autograd.Function``): where does their backward send the rows?

Only their code knows. It runs once more, on copies of all that it can reach: what it saved, what it keeps in ``ctx``, the state
of the model and of the function's class. A function that cannot be run like this, or whose backward is not linear, is
doubted:
what lies below it gives contributions, and is marked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import BackwardCFunction
from torch.utils.checkpoint import CheckpointFunction

from cockpit_core.engine.samples.layout import noise_of
from cockpit_core.foundation.sharded import has_peers
from cockpit_core.layers.copying import CannotCopy, Copier

Room = Callable[[set[type]], AbstractContextManager[None]]
"""Inside, code of these classes may run without a trace. NotRepeatable where that cannot be promised."""


class Doubt(Exception):
    """The message says why it is not known what the function does to rows."""


def own_function(node: Any) -> type[Function] | None:
    """The user's function whose backward this node is; torch's own are known."""
    function = getattr(type(node), "_forward_cls", None) if isinstance(node, BackwardCFunction) else None
    return function if function is not None and not function.__module__.startswith("torch.") else None


def is_checkpoint(node: Any) -> bool:
    return getattr(type(node), "_forward_cls", None) is CheckpointFunction


def own_functions(nodes: Iterable[Any]) -> set[type]:
    return {function for node in nodes if (function := own_function(node)) is not None}


class Context:
    """Stands in for the ``ctx`` of one call: copies of all it holds, so that a backward may write into it."""

    def __init__(self, node: Any):
        copier = Copier()
        try:
            for name, value in vars(node).items():
                setattr(self, name, copier.copy(value, name))
        except CannotCopy as error:
            raise Doubt(str(error)) from error
        self.saved_tensors = tuple(copier.copy(tensor, "a saved tensor") for tensor in node.saved_tensors)
        self.needs_input_grad = node.needs_input_grad


def pull_through(node: Any, gradients: dict[int, Tensor]) -> dict[int, Tensor]:
    """The user's backward on copies: from gradients of its outputs to those of its inputs, by edge of the node."""
    function = node._forward_cls
    backward = function.backward if function.vjp is Function.vjp else function.vjp
    given = [fill(node, k, gradients.get(k)) for k in range(len(node._input_metadata))]
    results = backward(Context(node), *given)
    results = results if isinstance(results, tuple) else (results,)
    edges = [k for k, (child, _) in enumerate(node.next_functions) if child is not None]
    arguments = [k for k, needed in enumerate(node.needs_input_grad) if needed]
    if len(edges) != len(arguments) or len(results) <= max(arguments, default=-1):
        raise Doubt("its gradients do not match its arguments")
    pairs = zip(edges, arguments, strict=True)
    return {edge: results[k] for edge, k in pairs if isinstance(results[k], Tensor)}


def fill(node: Any, output: int, gradient: Tensor | None) -> Tensor | None:
    """Torch gives zeros for an output that nothing came to, unless the function wants to know."""
    if gradient is not None:
        return gradient.clone()
    if not getattr(node, "materialize_grads", True):
        return None
    meta = node._input_metadata[output]
    return torch.zeros(tuple(meta.shape), dtype=meta.dtype, device=meta.device)


def pull_pairs(node: Any, pairs: dict[int, tuple[Tensor, Tensor]]) -> dict[int, tuple[Tensor, Tensor]]:
    """Both cotangents. Doubt where twice the gradient does not give twice the result: clipped, normalised, rounded."""
    if has_peers():
        raise Doubt("it may talk to other processes, so it is not run again")
    try:
        one, other = (pull_through(node, {k: pair[side] for k, pair in pairs.items()}) for side in (0, 1))
        twice = pull_through(node, {k: 2 * pair[0] for k, pair in pairs.items()})
    except Doubt:
        raise
    except Exception as error:  # whatever the user's code does when it runs at another time
        raise Doubt(f"{type(error).__name__} when it runs again") from error
    for k, gradient in one.items():
        if k not in other or k not in twice:
            raise Doubt("it gives another number of gradients when it runs again")
        rest = torch.linalg.vector_norm(twice[k] - 2 * gradient)
        if not bool(rest <= noise_of(gradient) * torch.linalg.vector_norm(twice[k])):
            raise Doubt("its backward is not linear")
    return {k: (gradient, other[k]) for k, gradient in one.items()}

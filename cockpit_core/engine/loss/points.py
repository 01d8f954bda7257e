"""Where curvature is asked for, when the loss is a function: the outputs of the model that its graph passes through.

Gauss-Newton splits a network from its loss at the model's own outputs: the first ones that are met on the way down from the
loss and hold samples. Several of them are one output with all their entries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from cockpit_core.curvature import NoCurvature
from cockpit_core.curvature.autograd_graph import reachable
from cockpit_core.engine.loss.graph import Term, children_of, is_sink, roots_of, weigh
from cockpit_core.engine.loss.roots import Root
from cockpit_core.engine.loss.samples import spread
from cockpit_core.engine.loss.terms import is_linear
from cockpit_core.layers.seeds import flatten_tensors


class Given(Protocol):
    """What the engine keeps about each tensor that the model returned."""

    forward: Any
    position: int
    tensor: Tensor


def place_of(tensor: Tensor) -> tuple[Any, int]:
    return tensor.grad_fn, tensor.output_nr


def choose_outputs(root: Root, outputs: Sequence[Given], B: int, batch_dim: int) -> list[Given]:
    """Those that the root is computed from, each path's first one."""
    known = {place_of(o.tensor): o for o in outputs if has_samples(o.tensor, B, batch_dim)}
    reached: dict[Any, Given] = {}
    seen, waiting = set(), roots_of(root)
    while waiting and known:
        place = waiting.pop()
        if place in seen:
            continue
        seen.add(place)
        if place in known:
            reached[place] = known[place]
        else:
            waiting += children_of(*place)
    return sorted(reached.values(), key=lambda o: o.position)


def has_samples(tensor: Tensor, B: int, batch_dim: int) -> bool:
    return tensor.dim() > 0 and B > 0 and spread(torch.zeros(B), tuple(tensor.shape), batch_dim) is not None


def depends_beside(nodes: Sequence[Any], outputs: Sequence[Tensor], parameters: Mapping[str, Tensor]) -> bool:
    """Do these nodes depend on parameters by other ways than through the outputs? By a penalty, or another part of the
    model: they are then no functions of the outputs."""
    wanted, ends = {id(p) for p in parameters.values()}, [o.grad_fn for o in outputs if o.grad_fn is not None]
    return any(id(getattr(node, "variable", None)) in wanted for node in reachable(nodes, ends))


def penalty_of(terms: Sequence[Term]) -> Tensor | None:
    """All that depends on parameters alone, with its graph; None if there is nothing of the kind."""
    penalties = [term.entries() for term in terms if term.shared and term.weight is not None]
    parts = [(e.source * e.unit).sum() for e in penalties if isinstance(e.source, Tensor)]
    return torch.stack([part.double() for part in parts]).sum() if parts else None


class Join:
    """One tensor of several outputs, [B, entries], and back; a single one stays as it is."""

    def __init__(self, tensors: Sequence[Tensor], B: int, batch_dim: int):
        self.shapes = [tuple(t.shape) for t in tensors]
        if len(tensors) > 1 and (batch_dim != 0 or any(shape[0] != B for shape in self.shapes)):
            raise NoCurvature(
                "the loss looks at several outputs that do not have the samples along their first dimension"
            )
        self.single = len(tensors) == 1

    def __call__(self, tensors: Sequence[Tensor]) -> Tensor:
        if self.single:
            return tensors[0]
        wide = max((t.dtype for t in tensors), key=lambda dtype: torch.finfo(dtype).bits)
        return torch.cat([t.reshape(len(t), -1).to(wide) for t in tensors], 1)

    def part(self, values: Tensor) -> list[Tensor]:
        if self.single:
            return [values]
        sizes = [torch.Size(shape[1:]).numel() for shape in self.shapes]
        pieces = zip(values.split(sizes, 1), self.shapes, strict=True)
        return [piece.reshape(len(values), *shape[1:]) for piece, shape in pieces]


def taken_again(chosen: Sequence[Given], join: Join) -> Callable[[Any], Tensor]:
    """From what the model gives when it is run again, the same outputs joined in the same way."""

    def take(result: Any) -> Tensor:
        tensors = flatten_tensors(result)
        if any(o.position >= len(tensors) for o in chosen):
            raise NoCurvature("the model gives other outputs when its forward pass is repeated")
        return join([tensors[o.position] for o in chosen])

    return take


def call_of(chosen: Sequence[Given]) -> Any:
    """The one call of the model that these outputs come from."""
    calls = {id(o.forward): o.forward for o in chosen}
    if len(calls) != 1:
        raise NoCurvature("the loss looks at several calls of the model, so its forward pass cannot be repeated alone")
    return next(iter(calls.values()))


def scalars_of(root: Root, outputs: Sequence[Given]) -> list[tuple[Given, Tensor]]:
    """Losses that the model itself has computed, with their factors, where the root is a sum of these alone; else none."""
    known = {place_of(o.tensor): o for o in outputs if o.tensor.dim() == 0}
    reached: list[Given] = []
    waiting = roots_of(root)
    while waiting:
        place = waiting.pop()
        if place in known:
            reached.append(known[place])
        elif is_sink(place[0]) or (not hasattr(place[0], "_forward_cls") and is_linear(place[0])):
            waiting += children_of(*place)
        else:
            return []
    edges = [GradientEdge(*place_of(o.tensor)) for o in reached]
    weights = weigh(root, edges) if edges else []
    return [(o, w) for o, w in zip(reached, weights, strict=True) if w is not None]

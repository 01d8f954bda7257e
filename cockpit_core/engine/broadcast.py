"""Parameters that meet the batch by broadcasting: learned positions, class tokens, queries.

``x + self.positions``, ``positions(arange(T))`` or ``token.expand(B, ...)`` use a parameter once for all samples, so the
module's own output gradient is summed over them already. The individual gradients are still there one node later, in the
gradient of the sum [B, ...]: it is taken at that node of the autograd graph, and pulled back through the few nodes
that have no batch dimension. This also tells a module that was called on T positions from one that was called on B
samples, where T = B.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from cockpit_core.engine.cover import Cover
from cockpit_core.engine.quiet import Quiet
from cockpit_core.engine.samples.following import Follower
from cockpit_core.engine.samples.likeness import outline
from cockpit_core.engine.samples.replay import TELLS_HOOKS
from cockpit_core.layers.registry import Call
from cockpit_core.layers.seeds import stack_rows

TAG = "cockpit"
BROADCASTING = ("AddBackward0", "SubBackward0", "ExpandBackward0", "RepeatBackward0")
REDUCTIONS = ("Mean", "Sum", "Var", "Std", "Max", "Min", "Amax", "Amin", "Logsumexp", "Norm", "LinalgVectorNorm")


@dataclass(eq=False)
class Entry:
    """An edge of the graph at which something without samples meets the batch. ``tail`` is its unbatched side."""

    tail: GradientEdge
    tail_shape: torch.Size
    factor: float
    batch_dim: int
    calls: list[tuple[Call, list[str], int, GradientEdge]] = field(default_factory=list)
    leaves: dict[str, Tensor] = field(default_factory=dict)
    forward: int = 0


def tag(output: Tensor, call: Call, names: list[str], position: int) -> None:
    """Mark a hooked call's node. The node holds the call, never the other way round: that would leak."""
    if output.grad_fn is not None:
        marks: Any = output.grad_fn.metadata
        marks.setdefault(TAG, []).append((call, names, position))


@dataclass
class Broadcasts:
    """What the graph of one loss shows: entries with the nodes at which to listen, and whether samples meet."""

    entries: list[tuple[Any, Entry]] = field(default_factory=list)
    interacts: str = ""
    """Why the loss is not a sum over samples, where it is not."""
    has_unbatched: bool = False
    """Some module was called without the batch."""


def find_broadcasts(
    root: Any, origin: tuple[int, int], batch_dim: int, cover: Cover, follower: Follower, quiet: Quiet
) -> Broadcasts:
    """Look through the graph of one loss. Once per tracked step and loss; the calls in it are told of their samples.

    ``origin``: the call of the model that the loss belongs to, and its samples.
    """
    forward, B = origin
    if root is None or not B or B < 2:
        return Broadcasts(interacts=follower.doubt_calls(root) if root is not None and B else "")
    entries, batched = find_entries(root, B, batch_dim)
    places = [(node, entry.batch_dim) for node, entry in entries]
    careful = cover.sharded or (quiet.packed and not TELLS_HOOKS)
    finding = follower.follow(root, origin, batch_dim, places, outline(batched), careful, quiet.running)
    # What also meets the batch where samples mix has rows of its own there: those of the other places alone are not all.
    mixed = [entry.tail.node for (_, entry), holds in zip(entries, finding.entries, strict=True) if not holds]
    lost = {node for tail in mixed for node in descend(tail, batched)}
    entries = [entry for entry, holds in zip(entries, finding.entries, strict=True) if holds]
    result, expanded = Broadcasts(interacts=finding.interacts), dict[int, Call]()
    for _, entry in entries:
        region = descend(entry.tail.node, batched)
        if not any(mixes_samples(node, B, batch_dim) for node in region):
            fill(entry, cover.names, region - lost, expanded, B)
    if not entries or cover.sharded:  # what lies behind entries cannot be pulled back: its parameters no longer exist
        return result
    names = {cover.names.get(id(n.variable)) for n in batched if hasattr(n, "variable")}
    for node, entry in entries:
        entry.leaves = {name: p for name, p in entry.leaves.items() if name not in names}
        if (entry.calls or entry.leaves) and node.metadata.setdefault(f"{TAG} entry", entry) is entry:
            entry.forward = forward
            result.entries.append((node, entry))
    result.has_unbatched = bool(expanded)
    return result


def find_entries(root: Any, B: int, batch_dim: int) -> tuple[list[tuple[Any, Entry]], dict[Any, None]]:
    """Walk from the loss towards the leaves, not beyond entries; what was passed, in this order, has samples."""
    entries, batched, waiting = [], dict[Any, None](), [root]
    while waiting:
        node = waiting.pop()
        if node in batched:
            continue
        batched[node] = None
        broadcasts = node.name() in BROADCASTING
        for k, (child, index) in enumerate(node.next_functions):
            if child is None:
                continue
            entry = make_entry(node, k, child, index, B, batch_dim) if broadcasts else None
            if entry is None:
                waiting.append(child)
            else:
                entries.append((node, entry))
    return entries, batched


def make_entry(node: Any, k: int, child: Any, index: int, B: int, batch_dim: int) -> Entry | None:
    """Does this operand lack the batch dimension that the result has?"""
    shape, tail = node._input_metadata[0].shape, child._input_metadata[index].shape
    dim = shared_dim(tuple(shape), tuple(tail), B, batch_dim)
    if dim is None:
        return None
    if node.name() == "RepeatBackward0" and tuple(shape) != (*tail[:dim], B, *tail[dim + 1 :]):
        return None
    factor = float(node._saved_alpha) if k == 1 and node.name() in ("AddBackward0", "SubBackward0") else 1.0
    if k == 1 and node.name() == "SubBackward0":
        factor = -factor
    return Entry(GradientEdge(child, index), torch.Size(tail), factor, dim)


def shared_dim(shape: tuple[int, ...], tail: tuple[int, ...], B: int, batch_dim: int) -> int | None:
    """The one dimension of size B along which ``tail`` is repeated. Inside a network the batch may be in another place
    than outside; where it could be either of two dimensions, nothing is guessed."""
    padded = (1,) * (len(shape) - len(tail)) + tail
    if len(shape) > batch_dim and padded[batch_dim] == B:
        return None  # it has the batch where it belongs, and is repeated over something else of the same size
    places = [dim for dim, (size, own) in enumerate(zip(shape, padded, strict=True)) if size == B and own == 1]
    if len(places) != 1 or (max(tail, default=1) == 1 and places[0] != batch_dim):
        return None
    return places[0]


def descend(tail: Any, batched: Container[Any]) -> set[Any]:
    """All nodes on the unbatched side."""
    seen, waiting = set(), [tail]
    while waiting:
        node = waiting.pop()
        if node not in seen and (node not in batched or hasattr(node, "variable")):
            seen.add(node)
            waiting += [child for child, _ in node.next_functions if child is not None]
    return seen


def mixes_samples(node: Any, B: int, batch_dim: int) -> bool:
    """A mean over the batch has no batch dimension either, but its samples are known further down."""
    if not node.name().startswith(REDUCTIONS):
        return False
    shapes = [child._input_metadata[index].shape for child, index in node.next_functions if child is not None]
    return any(len(shape) > batch_dim and shape[batch_dim] == B for shape in shapes)


def fill(entry: Entry, own: Mapping[int, str], region: set[Any], expanded: dict[int, Call], B: int) -> None:
    """The calls and parameters on the unbatched side."""
    for node in region:
        for call, names, position in node.metadata.get(TAG, ()):
            call.unbatched = True
            made = expanded.setdefault(id(call), expand_call(call, B))
            entry.calls.append((made, names, position, GradientEdge(node, 0)))
        name = own.get(id(getattr(node, "variable", None)))
        if name is not None:
            entry.leaves[name] = node.variable


def expand_call(call: Call, B: int) -> Call:
    """The same call as if every sample had made it."""
    axis = call.batch_dim

    def widen(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        value = value.clone()  # it may be a parameter, which the optimizer is going to move
        if value.dim() > axis and value.shape[axis] == 1:
            return value.expand(*value.shape[:axis], B, *value.shape[axis + 1 :])
        return value.unsqueeze(axis).expand(*value.shape[:axis], B, *value.shape[axis:])

    inputs, kwargs = tuple(widen(v) for v in call.inputs), {key: widen(v) for key, v in call.kwargs.items()}
    own: dict[str, Any] = {"dims": {}, "rows": {}, "in_order": frozenset(), "refusal": "", "followed": True}
    return replace(call, inputs=inputs, kwargs=kwargs, batch_size=B, unbatched=False, adds_up=True, **own)


@dataclass
class Pulled:
    """Gradients of every sample at an entry: of the outputs of calls, and of parameters themselves [B, *shape]."""

    outputs: list[tuple[Call, list[str], int, Tensor]]
    rows: dict[str, Tensor]


def pull_entry(entry: Entry, gradient: Tensor, cover: Cover, mute: Callable[[], Any]) -> Pulled:
    """From the gradient of the batched result to what lies on the unbatched side."""
    seeds = per_sample(gradient.detach() * entry.factor, entry.batch_dim, entry.tail_shape)
    own = {cover.name_of(call.module, local) for call, names, _, _ in entry.calls for local in names}
    leaves = {n: p for n, p in entry.leaves.items() if n not in own}
    edges = [edge for _, _, _, edge in entry.calls]
    with mute():
        rows = pull_back(entry.tail, seeds, [*edges, *leaves.values()])
    outputs = [
        (call, names, position, as_batch(b, call.batch_dim))
        for (call, names, position, _), b in zip(entry.calls, rows, strict=False)
        if b is not None
    ]
    direct = zip(leaves, rows[len(edges) :], strict=True)
    return Pulled(outputs, {name: row for name, row in direct if row is not None})


def per_sample(gradient: Tensor, batch_dim: int, tail: torch.Size) -> Tensor:
    """[..., B, ...] to [B, *tail]: what each sample sends to the operand that all of them share."""
    rows = gradient.movedim(batch_dim, 0).unsqueeze(batch_dim + 1)
    while rows.dim() - 1 > len(tail):
        rows = rows.sum(1)
    for dim, size in enumerate(tail, 1):
        if size == 1 and rows.shape[dim] != 1:
            rows = rows.sum(dim, keepdim=True)
    return rows


def pull_back(tail: GradientEdge, seeds: Tensor, targets: list[Any]) -> list[Tensor | None]:
    """Per-sample gradients of everything below the entry, in one pass over the few nodes there."""
    done: list[Tensor | None] = [None] * len(targets)
    rest = []
    for k, target in enumerate(targets):
        is_tail = isinstance(target, GradientEdge) and target.node is tail.node
        if is_tail or getattr(tail.node, "variable", None) is target:
            done[k] = seeds
        else:
            rest.append(k)
    if rest:
        wanted = [targets[k] for k in rest]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                gradients = torch.autograd.grad(
                    [tail], wanted, [seeds], retain_graph=True, allow_unused=True, is_grads_batched=True
                )
            except RuntimeError:  # no batching rule for one of the nodes
                singles = [
                    torch.autograd.grad([tail], wanted, [s], retain_graph=True, allow_unused=True) for s in seeds
                ]
                gradients = tuple(stack_rows(column) for column in zip(*singles, strict=True))
        for k, rows in zip(rest, gradients, strict=True):
            done[k] = rows
    return done


def as_batch(rows: Tensor, batch_dim: int) -> Tensor:
    """[B, *output shape] to the shape that the call's output has with every sample in it (see ``expand_call``)."""
    if rows.dim() > batch_dim + 1 and rows.shape[batch_dim + 1] == 1:
        rows = rows.squeeze(batch_dim + 1)
    return rows.movedim(0, batch_dim)

"""Which rows of a layer's output belong to which sample, read off the graph (see ``replay``).

The model's outputs count samples along ``batch_dim``; from there the samples are followed to every hooked call. A call
whose rows belong to one sample each is measured, in whatever order they lie; one whose rows belong to several (learned
positions, a weight that a parametrization computes) is left to the module around it; one behind which samples meet
gives contributions, and is marked.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from cockpit_core.engine.samples.layout import Layout, find_layout, is_in_order, weigh
from cockpit_core.engine.samples.replay import Pair, Places, find_region, pull, shape_of, uneven
from cockpit_core.engine.samples.separability import (
    Curved,
    Unknown,
    find_sums,
    is_scalar,
    places_of_samples,
    why_not_a_sum,
)
from cockpit_core.layers.registry import RULES, Call

CALLED, GIVEN = "cockpit call", "cockpit model"
TRUSTED_AFTER, RECHECKED_EVERY = 2, 64
ROUTED = ("Index", "Gather", "Scatter", "Masked", "Take", "Put", "Sort", "Topk", "Unique", "RepeatInterleave", "Where")
"""Functions that may move rows differently at every step."""
CHANNELS_FIRST = (
    nn.modules.conv._ConvNd,
    nn.modules.batchnorm._NormBase,
    nn.GroupNorm,
    nn.EmbeddingBag,
)
BEHIND = "BatchNorm in training mode mixes samples behind this layer"
MIXED = "rows of its output belong to several samples at once: they share it, or see each other behind it"

NESTED = "a call of the model depends on what another call gave, which had other samples"


@dataclass
class Finding:
    """What one look at the graph has shown: a layout for each call and output, and whether the loss is a sum."""

    layouts: list[dict[int, Layout]] = field(default_factory=list)
    marks: list[tuple[str, str]] = field(default_factory=list)
    """Of each call: why it is refused, why it is a contribution."""
    entries: list[bool] = field(default_factory=list)
    interacts: str = ""
    routed: bool = True
    uses: int = 0

    @property
    def is_trusted(self) -> bool:
        return not self.routed and self.uses >= TRUSTED_AFTER and self.uses % RECHECKED_EVERY != 0


@dataclass(eq=False)
class Follower:
    """Looks at the first tracked steps, at every step where rows are routed or something is new, and now and then."""

    calls: list[weakref.ref] = field(default_factory=list)
    """Those of the step so far."""
    inputs: set[tuple] = field(default_factory=set)
    """Places of the model's inputs: a call on one of them knows its samples."""
    known: dict[Any, Finding] = field(default_factory=dict)
    told: dict[int, list[tuple]] = field(default_factory=dict)
    """By call of the model: what each call in it was told, for a repetition."""

    def begin(self) -> None:
        self.calls.clear()
        self.told.clear()
        self.inputs.clear()

    def resize(self, forward: int, samples: int) -> None:
        """The outputs of this call of the model count other samples than its inputs: graphs, not nodes."""
        for ref in self.calls:
            call = ref()
            if call is not None and call.forward == forward:
                call.batch_size = samples

    def note_inputs(self, tensors: list[Tensor]) -> None:
        self.inputs |= {place_of(tensor) for tensor in tensors}

    def note_call(self, call: Call, outputs: list[Tensor]) -> None:
        """Mark the node of each output; the node holds the call, never the other way round."""
        self.calls.append(weakref.ref(call))
        call.shapes = tuple(tuple(output.shape) for output in outputs)
        call.from_data = any(place_of(tensor) in self.inputs for tensor in given_tensors(call))
        for position, output in enumerate(outputs):
            if output.grad_fn is not None:
                marks: Any = output.grad_fn.metadata
                marks.setdefault(CALLED, []).append((call, position, output.output_nr))

    def follow(
        self,
        root: Any,
        origin: tuple[int, int],
        batch_dim: int,
        entries: list[tuple[Any, int]],
        size: int,
        careful: bool,
    ) -> Finding:
        """What is known of the calls below this loss; their ``Call`` objects are told.

        ``entries``: nodes with the dimension at which they are taken to count samples. ``size``: nodes of the graph.
        """
        calls = [call for ref in self.calls if (call := ref()) is not None]
        key = (*((id(call.module), call.shapes) for call in calls), origin[1], size, careful)
        finding = self.known.get(key)
        if finding is not None and finding.is_trusted:
            finding.uses += 1
        else:
            uses = finding.uses if finding is not None else 0
            finding = look(root, calls, origin, batch_dim, entries, careful)
            finding.uses = uses + 1
            self.known = {**dict(list(self.known.items())[-31:]), key: finding}
        self.told.clear()
        for call, layouts, marks in zip(calls, finding.layouts, finding.marks, strict=True):
            call.batch_size = call.batch_size or origin[1]
            if call.batch_size == origin[1]:
                tell(call, layouts, *marks)
            own = (call.module, call.dims, call.rows, call.refusal, call.followed)
            self.told.setdefault(call.forward, []).append(own)
        return finding

    def repeat(self, call: Call, forward: int, place: int) -> None:
        """The same call of a forward pass that is repeated."""
        known = self.told.get(forward, [])
        if place >= len(known):
            return
        module, dims, rows, refusal, followed = known[place]
        if module is call.module:
            call.dims, call.rows, call.refusal, call.followed = dims, rows, refusal, followed
        else:
            call.refusal = "the forward pass took another way when it was repeated"


def place_of(tensor: Tensor) -> tuple:
    try:
        return tensor.data_ptr(), tensor.shape, tensor.stride()
    except RuntimeError:  # nested, sharded or functional tensors have no place of their own
        return (id(tensor),)


def given_tensors(call: Call) -> list[Tensor]:
    """Its arguments, whole numbers too."""
    values = [*call.inputs, *call.kwargs.values()]
    return [value for value in values if isinstance(value, Tensor) and value.layout == torch.strided]


def tell(call: Call, layouts: dict[int, Layout], refusal: str, interacts: str) -> None:
    call.refusal = call.refusal or refusal
    call.interacts = call.interacts or interacts
    for position, layout in layouts.items():
        call.followed |= layout.known
        if layout.dim is not None:
            call.dims[position] = layout.dim
        elif layout.rows is not None and not is_ordinary(layout, call, position):
            call.rows[position] = (layout.rows, layout.lead)


def is_ordinary(layout: Layout, call: Call, position: int) -> bool:
    """``x.view(B * T, F)``: what every rule can unflatten."""
    assert layout.rows is not None
    first = call.shapes[position][0]
    return call.batch_dim == 0 and first == len(layout.rows) and is_in_order(layout.rows, call.batch_size)


def samples_of_outputs(outputs: list[Tensor], given: int, batch_dim: int) -> int:
    """How many samples a model has returned that was given so many rows. Fewer, where it pools rows: nodes of graphs."""
    sizes = {output.shape[batch_dim] for output in outputs if output.requires_grad and output.dim() > batch_dim}
    return sizes.pop() if len(sizes) == 1 and max(sizes) < given else given


def mark_outputs(outputs: list[Tensor], forward: int) -> None:
    for output in outputs:
        if output.grad_fn is not None and output.dim():
            marks: Any = output.grad_fn.metadata
            marks.setdefault(GIVEN, []).append((forward, output.output_nr))


def look(
    root: Any,
    calls: list[Call],
    origin: tuple[int, int],
    batch_dim: int,
    entries: list[tuple[Any, int]],
    careful: bool,
) -> Finding:
    """One look at the graph of a loss."""
    nodes = reachable(root)
    targets = {n for n in nodes if CALLED in n.metadata}
    wanted = targets | {node for node, _ in entries}
    samples, best = origin[1], None
    others = {call.forward for call in calls if call.batch_size not in (0, samples)}  # batches of another size
    marked = {
        n: {nr for forward, nr in n.metadata[GIVEN] if forward not in others} for n in nodes if GIVEN in n.metadata
    }
    given = {n: numbers for n, numbers in marked.items() if numbers}
    for choice in range(3):
        dims = choose_dims(given, samples, batch_dim, choice)
        if dims is None:
            break
        seen = Seen(samples, batch_dim, dict(entries))
        pull(seed(dims, samples), wanted, seen.visit, careful=careful)
        if best is None or agrees(seen.layouts, calls, samples):
            best = dims, seen
        if agrees(seen.layouts, calls, samples):
            break
    if best is None:
        best = from_the_loss(root, wanted, Seen(samples, batch_dim, dict(entries)), careful)
    if best is None:
        return Finding([{} for _ in calls], [("", "") for _ in calls], [True for _ in entries])
    dims, seen = best
    reason = why_not_a_sum(root, dims, samples, batch_dim, careful=careful) if dims else ""
    finding = Finding(interacts=reason or (NESTED if others and is_nested(nodes, calls) else ""))
    normalised = below_batch_norm(nodes)
    for call in calls:
        own = seen.layouts.get(id(call), {})
        refusal, interacts = judge(call, own, samples, targets)
        finding.layouts.append(own)
        finding.marks.append((refusal, interacts or (BEHIND if id(call) in normalised else "")))
    finding.entries = [seen.entries.get(node, True) for node, _ in entries]
    finding.routed = any(n.name().startswith(ROUTED) for n in nodes) or any(
        layout.rows is not None for own in finding.layouts for layout in own.values()
    )
    return finding


def reachable(root: Any) -> set[Any]:
    seen, waiting = set(), [root]
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            waiting += [child for child, _ in node.next_functions if child is not None]
    return seen


def is_nested(nodes: set[Any], calls: list[Call]) -> bool:
    """Does one call of the model lie behind another one of another size? An inner training step (MAML) does."""
    sizes = {call.forward: call.batch_size for call in calls}
    given = [(n, {sizes.get(forward) for forward, _ in n.metadata[GIVEN]}) for n in nodes if GIVEN in n.metadata]
    for node, own in given:
        below = {n for child, _ in node.next_functions if child is not None for n in reachable(child)}
        if any(other in below and size != own for other, size in given if other is not node):
            return True
    return False


def below_batch_norm(nodes: set[Any]) -> set[int]:
    """Calls whose outputs pass a normalisation over the batch on their way to the loss."""
    norms = [n for n in nodes if "BatchNorm" in n.name() and getattr(n, "_saved_training", True)]
    below = {
        node for norm in norms for child, _ in norm.next_functions if child is not None for node in reachable(child)
    }
    return {id(call) for node in below for call, _, _ in node.metadata.get(CALLED, ())}


def choose_dims(
    given: dict[Any, set[int]], samples: int, batch_dim: int, choice: int
) -> dict[Any, dict[int, int]] | None:
    """For each output of the model the dimension that counts samples: the likeliest, the next one, ..."""
    dims: dict[Any, dict[int, int]] = {}
    most = 0
    for node, numbers in given.items():
        for nr in numbers:
            likely = places_of_samples(shape_of(node, nr), samples, batch_dim)
            most = max(most, len(likely))
            if likely:
                dims.setdefault(node, {})[nr] = likely[min(choice, len(likely) - 1)]
    return dims if dims and choice < most else None


def seed(dims: dict[Any, dict[int, int]], samples: int) -> Places:
    """Positive numbers without a pattern, and the same with every sample's weight."""
    seeds: Places = {}
    for node, numbers in dims.items():
        for nr, dim in numbers.items():
            meta = node._input_metadata[nr]
            like = torch.empty(0, dtype=meta.dtype, device=meta.device)
            c = uneven(torch.Size(meta.shape).numel(), like).reshape(tuple(meta.shape))
            seeds.setdefault(node, {})[nr] = (c, weigh(c, dim, samples))
    return seeds


class Seen:
    """What arrived at calls and entries, read at once and dropped."""

    def __init__(self, samples: int, batch_dim: int, places: dict[Any, int]):
        self.samples, self.batch_dim, self.places = samples, batch_dim, places
        self.layouts: dict[int, dict[int, Layout]] = {}
        self.entries: dict[Any, bool] = {}

    def visit(self, node: Any, pairs: dict[int, Pair]) -> None:
        for call, position, nr in node.metadata.get(CALLED, ()):
            if nr in pairs:
                found = find_layout(pairs[nr], self.samples, self.batch_dim, leads_of(call, pairs[nr]))
                self.layouts.setdefault(id(call), {})[position] = found
        if node in self.places and 0 in pairs:
            found = find_layout(pairs[0], self.samples, self.places[node], ())
            self.entries[node] = found.dim == self.places[node] or not found.mixed


def leads_of(call: Call, pair: tuple[Tensor, Tensor]) -> tuple[int, ...]:
    """How many leading dimensions of this output count rows."""
    module, dim = call.module, pair[0].dim()
    if isinstance(module, CHANNELS_FIRST):
        return (1,)
    if isinstance(module, nn.LayerNorm):
        return (dim - len(module.normalized_shape),)
    if isinstance(module, (nn.Linear, nn.Embedding)) or type(module).__name__ == "RMSNorm":
        return (dim - 1,)
    return (1, dim - 1)


def agrees(layouts: dict[int, dict[int, Layout]], calls: list[Call], samples: int) -> bool:
    """Samples known from the outputs against samples known from the inputs, where a call works on an input itself."""
    for call in calls:
        layout = layouts.get(id(call), {}).get(0)
        if call.from_data and type(call.module) in RULES and layout is not None and layout.known:
            if layout.dim is not None and layout.dim != call.batch_dim:
                return False
            if layout.rows is not None and call.batch_dim == 0 and not is_in_order(layout.rows, samples):
                return False
    return True


def judge(call: Call, layouts: dict[int, Layout], samples: int, targets: set[Any]) -> tuple[str, str]:
    """Why this call is refused, or why it is a contribution; both empty where it is exact, or not known."""
    if not any(layout.mixed for layout in layouts.values()):
        return "", ""
    shape = call.shapes[0] if call.shapes else ()
    strict = len(shape) > call.batch_dim and shape[call.batch_dim] == samples
    nodes = [n for n in targets if any(own is call for own, _, _ in n.metadata[CALLED])]
    below = {n for node in nodes for n in reachable(node)}
    routed = any(n.name().startswith(ROUTED) for n in below)
    data = call.from_data or any(own.from_data for n in below for own, _, _ in n.metadata.get(CALLED, ()))
    if strict and data and not routed:
        return "", "samples see each other inside the model, behind this layer"
    return MIXED, ""


def from_the_loss(
    root: Any, wanted: set[Any], seen: Seen, careful: bool
) -> tuple[dict[Any, dict[int, int]], Seen] | None:
    """Where the model was not called as a whole: samples as the terms of the loss count them."""
    region = find_region([root], wanted)
    if root not in region or not is_scalar(root):
        return None
    try:
        with torch.no_grad():
            sums = list(find_sums(root, region))
    except (Curved, Unknown):
        return None
    seeds: Places = {}
    for node, index, gradient in sums:
        likely = places_of_samples(gradient.shape, seen.samples, seen.batch_dim)
        if likely:
            seeds.setdefault(node, {})[index] = (gradient, weigh(gradient, likely[0], seen.samples))
    if not seeds:
        return None
    pull(seeds, wanted, seen.visit, careful=careful)
    return {}, seen

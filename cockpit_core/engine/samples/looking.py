"""One look at the graph of a loss: the samples of every call below it, and where they meet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from cockpit_core.engine.samples.behind import (
    CALLED,
    GIVEN,
    below_batch_norm,
    below_doubts,
    doubt_inside,
    find_region,
    is_nested,
    reachable,
)
from cockpit_core.engine.samples.layout import Layout, find_layout, is_in_order, weigh, weights_of
from cockpit_core.engine.samples.parts import PARTS, Others, are_parts
from cockpit_core.engine.samples.replay import Pair, Places, Reading, pull, shape_of, uneven
from cockpit_core.engine.samples.separability import (
    SEVERAL,
    Curved,
    Unknown,
    curved,
    find_sums,
    is_along,
    is_scalar,
    owners_of,
    places_of_samples,
    rows_of,
    why_not_a_sum,
)
from cockpit_core.layers.registry import RULES, Call, Repeating

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
FEATURES = "its samples lie where it has features: its rows belong to several of them"

UNCLEAR = "samples see each other inside the model, or lie in its output in another order than batch_dim= says"
NESTED = "a call of the model depends on what another call gave, which had other samples"


@dataclass
class Finding:
    """What one look at the graph has shown: a layout for each call and output, and whether the loss is a sum."""

    layouts: list[dict[int, Layout]] = field(default_factory=list)
    marks: list[tuple[str, str]] = field(default_factory=list)
    """For each call: why it is refused, and why it is a contribution."""
    entries: list[bool] = field(default_factory=list)
    interacts: str = ""
    routed: bool = True
    uses: int = 0

    @property
    def is_trusted(self) -> bool:
        return not self.routed and self.uses >= TRUSTED_AFTER and self.uses % RECHECKED_EVERY != 0


def look(
    root: Any,
    calls: list[Call],
    origin: tuple[int, int],
    batch_dim: int,
    entries: list[tuple[Any, int]],
    reading: Reading,
    others: Others,
) -> Finding:
    """One look at the graph of a loss. ``others``: calls that may have other samples than the rest."""
    nodes = reachable(root)
    parts = PARTS if are_parts(root, others) else ""
    targets = {n for n in nodes if CALLED in n.metadata}
    wanted = targets | {node for node, _ in entries}
    samples, best, agreed, doubtful = origin[1], None, False, False
    unequal = {call.forward for call in calls if call.batch_size not in (0, samples)}  # batches of another size
    marked = {
        n: {nr for forward, nr in n.metadata[GIVEN] if forward not in unequal} for n in nodes if GIVEN in n.metadata
    }
    given = {n: numbers for n, numbers in marked.items() if numbers}
    for dims, inner in hypotheses(given, samples, batch_dim):
        seen = Seen(samples, batch_dim, dict(entries))
        pull(seed(dims, samples, inner), wanted, seen.visit, reading)
        plain, apart = agrees(seen.layouts, calls, samples), is_apart(seen.layouts, calls)
        if plain and apart and is_confirmed(seen.layouts, calls, samples):
            best, doubtful = (dims, seen), False
            break
        doubtful |= plain and apart and agreed
        if best is None or (plain and not agreed):
            best, agreed = (dims, seen), plain
    if best is None:
        seen = Seen(samples, batch_dim, dict(entries))
        reason = from_the_loss(root, wanted, seen, reading)
        if not seen.layouts and not seen.entries:
            return Finding([{} for _ in calls], [("", "") for _ in calls], [True for _ in entries], reason)
    else:
        dims, seen = best
        reason = why_not_a_sum(root, dims, samples, batch_dim, reading)
    nested = NESTED if unequal and is_nested(nodes, calls) else ""
    unclear = UNCLEAR if doubtful else ""
    finding = Finding(interacts=reason or parts or nested or doubt_inside(reading.doubts) or unclear)
    normalised, doubted = below_batch_norm(nodes), below_doubts(reading.doubts)
    for call in calls:
        own = seen.layouts.get(id(call), {})
        refusal, interacts = judge(call, own, samples, targets)
        finding.layouts.append(own)
        interacts = interacts or parts or (BEHIND if id(call) in normalised else doubted.get(id(call), ""))
        finding.marks.append((refusal, interacts))
    finding.entries = [seen.entries.get(node, True) for node, _ in entries]
    moved = any(layout.rows is not None for own in finding.layouts for layout in own.values())
    finding.routed = moved or reading.unsettled or any(n.name().startswith(ROUTED) for n in nodes)
    return finding


def hypotheses(
    given: dict[Any, set[int]], samples: int, batch_dim: int
) -> Iterator[tuple[dict[Any, dict[int, int]], bool]]:
    """Where the outputs may have their samples, the likeliest first. With k B entries, "all samples k times" comes
    last."""
    chosen = [dims for choice in range(3) if (dims := choose_dims(given, samples, batch_dim, choice)) is not None]
    yield from ((dims, False) for dims in chosen)
    for dims in chosen:
        if any(shape_of(node, nr)[dim] > samples for node, own in dims.items() for nr, dim in own.items()):
            yield dims, True


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


def seed(dims: dict[Any, dict[int, int]], samples: int, inner: bool) -> Places:
    """Positive numbers without a pattern, and the same with every sample's weight."""
    seeds: Places = {}
    for node, numbers in dims.items():
        for nr, dim in numbers.items():
            meta = node._input_metadata[nr]
            like = torch.empty(0, dtype=meta.dtype, device=meta.device)
            c = uneven(torch.Size(meta.shape).numel(), like).reshape(tuple(meta.shape))
            seeds.setdefault(node, {})[nr] = (c, weigh(c, dim, samples, inner=inner))
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
                layout = find_layout(pairs[nr], self.samples, self.batch_dim, leads_of(call, pairs[nr][0].dim()))
                self.layouts.setdefault(id(call), {})[position] = layout
        if node in self.places and 0 in pairs:
            layout = find_layout(pairs[0], self.samples, self.places[node], ())
            self.entries[node] = layout.dim == self.places[node] or not layout.mixed


def leads_of(call: Call, dim: int) -> tuple[int, ...]:
    """How many leading dimensions of an output with ``dim`` dimensions count rows."""
    module = call.module
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
        if call.data_dim is not None and keeps_dims(call) and layout is not None and layout.known:
            if layout.dim is not None and layout.dim != call.data_dim:
                return False
            if (
                layout.rows is not None
                and call.from_data
                and call.data_dim == 0
                and not is_in_order(layout.rows, samples)
            ):
                return False
    return True


def is_apart(layouts: dict[int, dict[int, Layout]], calls: list[Call]) -> bool:
    """Does every row belong to one sample, as far as is known?"""
    known = [(call, layout) for call in calls for layout in layouts.get(id(call), {}).values()]
    return not any(layout.mixed or is_feature(call, layout) for call, layout in known)


def is_confirmed(layouts: dict[int, dict[int, Layout]], calls: list[Call], samples: int) -> bool:
    """Does a call on the inputs themselves have its samples where they came in?"""
    for call in calls:
        layout = layouts.get(id(call), {}).get(0)
        if layout is None or not keeps_dims(call):
            continue
        if call.data_dim is not None and (layout.dim == call.data_dim or layout.rows is not None):
            return True
        if call.in_blocks and layout.rows is not None and is_in_order(layout.rows, samples):
            return True
    return False


def keeps_dims(call: Call) -> bool:
    """Has its output the rows of its input in the same place?"""
    if isinstance(call.module, (nn.RNNBase, nn.MultiheadAttention)):
        return True
    return not isinstance(RULES.get(type(call.module)), (Repeating, type(None)))


def is_feature(call: Call, layout: Layout) -> bool:
    """Are samples taken to lie where this layer has features?"""
    return layout.dim is not None and layout.dim >= max(1, *leads_of(call, len(call.shapes[0])))


def judge(call: Call, layouts: dict[int, Layout], samples: int, targets: set[Any]) -> tuple[str, str]:
    """Why this call is refused, or why it is a contribution; both empty where it is exact, or not known."""
    if keeps_dims(call) and any(is_feature(call, layout) for layout in layouts.values()):
        return FEATURES, ""
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


def from_the_loss(root: Any, wanted: set[Any], seen: Seen, reading: Reading) -> str:
    """Where the model was not called as a whole: samples as the terms of the loss count them. Why it is no sum over them."""
    region = find_region([root], wanted)
    if root not in region or not is_scalar(root):
        return ""
    try:
        with torch.no_grad():
            sums = list(find_sums(root, region, seen.samples))
    except Unknown:
        return ""
    except Curved as function:
        return curved(function)
    first = first_rows(region & wanted, seen)
    seeds, reason = dict[Any, dict[int, Any]](), ""
    for node, index, gradient in sums:
        weighted = weigh_by_rows(node, index, gradient, first, seen, reading)
        if weighted is None:
            reason = SEVERAL if first else ""
        else:
            seeds.setdefault(node, {})[index] = (gradient, weighted)
    if seeds and not reason:
        pull(seeds, wanted, seen.visit, reading)
    return reason


def weigh_by_rows(
    node: Any, index: int, gradient: Tensor, first: dict[Any, dict[int, int]], seen: Seen, reading: Reading
) -> Tensor | None:
    """A term of the loss with each sample's part times its weight: whose it is follows from the ``first`` rows below,
    because a dimension of the right size may count anything. None, where a part belongs to several samples."""
    samples = seen.samples
    reading.unsettled |= not bool(gradient.any())
    for dim in places_of_samples(gradient.shape, samples, seen.batch_dim):
        weighted = weigh(gradient, dim, samples)
        if not first or any(
            is_along({node: {index: (gradient, weighted)}}, {own: rows}, samples, reading)
            for own, rows in first.items()
        ):
            return weighted
    for own, rows in first.items():
        owners = [owners_of(node, index, part, {own: rows}, reading) for part in rows_of(gradient)]
        if len(owners) == len(gradient) and all(len(some) < 2 for some in owners) and any(owners):
            whose = torch.tensor([min(some, default=0) for some in owners], device=gradient.device)
            weights = weights_of(samples).to(gradient)[whose]
            return gradient * weights.reshape(-1, *(1,) * (gradient.dim() - 1))
    return None


def first_rows(targets: set[Any], seen: Seen) -> dict[Any, dict[int, int]]:
    """Outputs of the calls nearest to the data that have a row for each sample, with the dimension of the rows."""
    rows: dict[Any, dict[int, int]] = {}
    for node in targets:
        below = {n for child, _ in node.next_functions if child is not None for n in reachable(child)}
        for _, _, nr in node.metadata.get(CALLED, ()) if not below & targets else ():
            shape = shape_of(node, nr)
            exact = [d for d in places_of_samples(shape, seen.samples, seen.batch_dim) if shape[d] == seen.samples]
            if exact:
                rows.setdefault(node, {})[nr] = exact[0]
    return rows

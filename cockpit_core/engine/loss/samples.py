"""Which entry of a loss belongs to which sample: by shape (checked on the graph), or from the graph itself.

The check: entries that belong to sample n may depend on sample n's part of the network's outputs alone. With a random weight
for each sample, ``J^T (weights * entries)`` must be the weighted ``J^T entries``, row by row. It takes two backward passes
through the few nodes between the outputs and the loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from cockpit_core.curvature.autograd_graph import kind_of, output_shape
from cockpit_core.engine.broadcast import TAG
from cockpit_core.engine.loss.graph import Entries
from cockpit_core.engine.loss.individual import NoIndividualLosses
from cockpit_core.engine.loss.terms import FROM_INPUT, LOSSES, signed
from cockpit_core.engine.samples.replay import uneven

TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3}
MIXED = "the loss mixes samples, so no part of it belongs to one of them alone"


@dataclass(frozen=True)
class Boundary:
    """An output of a layer that the loss is computed from, and which of its dimensions counts samples."""

    edge: GradientEdge
    batch_dim: int
    forward: int
    samples: int
    rows: Tensor | None = None
    """The sample of each row, where they lie in another order; the first ``lead`` dimensions count rows."""
    lead: int = 1

    def spread(self, values: Tensor, shape: tuple[int, ...]) -> Tensor | None:
        """One value per sample [B] to a tensor that goes with ``shape``, which is that of the output."""
        if self.rows is None:
            return spread(values, shape, self.batch_dim)
        if torch.Size(shape[: self.lead]).numel() != len(self.rows):
            return None
        each = values[self.rows.clamp(min=0)]  # any sample, for a row that counts for nothing
        return each.reshape(*shape[: self.lead], *(1,) * (len(shape) - self.lead))


def find_boundary(node: Any, known: int) -> list[Boundary]:
    """The first outputs of layers below a node of the loss. ``known``: samples, where a call does not say."""
    boundary, seen, waiting = [], set(), [node]
    while waiting:
        current = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        calls = current.metadata.get(TAG) if output_shape_of(current) else None
        if calls:
            call, _, position = calls[0]
            if not call.unbatched:
                rows, lead = call.rows.get(position, (None, 1)) if position not in call.in_order else (None, 1)
                dim, samples = call.dims.get(position, call.batch_dim), call.batch_size or known
                boundary.append(Boundary(GradientEdge(current, 0), dim, call.forward, samples, rows, lead))
                continue
        waiting += [child for child, _ in current.next_functions if child is not None]
    return boundary


def output_shape_of(node: Any) -> tuple[int, ...]:
    return () if hasattr(node, "variable") else output_shape(node)


def spread(values: Tensor, shape: tuple[int, ...], batch_dim: int) -> Tensor | None:
    """One value per sample [B] to a tensor that goes with ``shape``: along the dimension of samples, or along rows that
    hold several positions of each sample. None where no dimension counts the samples."""
    B = len(values)
    if len(shape) > batch_dim and shape[batch_dim] == B:
        return values.reshape(B, *(1,) * (len(shape) - 1 - batch_dim))
    if shape and shape[0] == B:
        return values.reshape(B, *(1,) * (len(shape) - 1))
    if shape and shape[0] and shape[0] % B == 0:
        rows = values.repeat_interleave(shape[0] // B) if batch_dim == 0 else values.repeat(shape[0] // B)
        return rows.reshape(-1, *(1,) * (len(shape) - 1))
    return None


def add_by_shape(entries: Tensor, B: int, batch_dim: int) -> Tensor | None:
    """[B] sums of the entries of each sample, by the same rule as ``spread``."""
    numbers = spread(torch.arange(B, device=entries.device), tuple(entries.shape), batch_dim)
    if numbers is None:
        return None
    return add_by_number(entries, numbers.expand(entries.shape), B)


def add_by_number(entries: Tensor, numbers: Tensor, B: int) -> Tensor:
    entries = entries.detach().double().reshape(-1)
    return entries.new_zeros(B).index_add_(0, numbers.reshape(-1), entries)


ROW_BY_ROW = frozenset({"View", "UnsafeView", "Reshape", "ToCopy", "Clone", "Alias", "Neg", "Add", "Sub", "Mul", "Div"})
"""They keep samples apart that lead dimension 0, in all of their shapes."""
ALONG_ONE = {"LogSoftmax": "dim", "Softmax": "dim", "Slice": "dim", "Select": "dim", "Unsqueeze": "dim"}
FREE = frozenset(FROM_INPUT) - {"Mm", "Bmm", "Mv", "Dot", "CosineSimilarity"}


def is_row_by_row(node: Any, B: int, boundary: list[Boundary]) -> bool:
    """Is it plain from the nodes between the outputs and this one that samples stay apart? Then nothing is computed."""
    ends, seen, waiting = {b.edge.node for b in boundary}, set(), [node]
    if not ends or any(b.batch_dim != 0 or b.rows is not None for b in boundary):
        return False
    if not all(leads(output_shape(b.edge.node), B) for b in boundary):
        return False
    while waiting:
        current = waiting.pop()
        if current in seen or current in ends:
            continue
        seen.add(current)
        if current is not node and not keeps_rows(current, B):
            return False
        if current is node and not (kind_of(node) in LOSSES and kind_of(node) != "CtcLoss") and not keeps_rows(node, B):
            return False
        waiting += [child for child, _ in current.next_functions if child is not None]
    return True


def leads(shape: tuple[int, ...], B: int) -> bool:
    return bool(shape) and shape[0] > 0 and shape[0] % B == 0


def keeps_rows(node: Any, B: int) -> bool:
    if hasattr(node, "variable") or hasattr(node, "_forward_cls"):
        return False
    kind, shape = kind_of(node), output_shape(node)
    before = [child._input_metadata[k].shape for child, k in node.next_functions if child is not None]
    if not leads(shape, B) or not all(leads(tuple(s), B) for s in before):
        return False
    if kind in ALONG_ONE:
        return signed(getattr(node, f"_saved_{ALONG_ONE[kind]}", 0)) % max(len(shape), len(before[0])) != 0
    if kind in ("View", "UnsafeView", "Reshape"):
        return True
    return (kind in ROW_BY_ROW or kind in FREE) and all(tuple(s) == shape for s in before)


def draw_weights(B: int) -> Tensor:
    """[B] with random signs, and no two alike: with signs alone, two samples that are mistaken for each other would
    often have the same."""
    generator = torch.Generator().manual_seed(1)
    signs = 2 * torch.randint(0, 2, (B,), generator=generator) - 1
    return signs * (1 + torch.randperm(B, generator=generator) / B).double()


def stays_apart(entries: Entries, B: int, batch_dim: int, boundary: list[Boundary]) -> bool | None:
    """Do the entries of each sample depend on its part of the outputs alone? None where that cannot be asked."""
    weights = draw_weights(B)
    mine = spread(weights.to(entries.values), tuple(entries.values.shape), batch_dim)
    if mine is None:
        return False
    edges, source, unit = [b.edge for b in boundary], entries.source, entries.unit
    if not edges or source is None:
        return None
    plain = torch.autograd.grad(source, edges, unit, retain_graph=True, allow_unused=True)
    turned = torch.autograd.grad(source, edges, unit * mine, retain_graph=True, allow_unused=True)
    asked = False
    for place, g, after in zip(boundary, plain, turned, strict=True):
        theirs = None if g is None else place.spread(weights.to(g), tuple(g.shape))
        if g is None or after is None or theirs is None:
            continue
        asked = True
        allowed = TOLERANCE.get(g.dtype, 5e-2) * float(g.abs().max())
        if not float((after - g * theirs).abs().max()) <= allowed:
            return False
    return True if asked else None


def find_numbers(entries: Entries, B: int, boundary: list[Boundary]) -> Tensor:
    """The sample of each entry, determined by moving the outputs: along ``w`` and, sample n, along ``(n + 1) w``. An
    entry that
    depends on sample n alone moves ``n + 1`` times as far the second time. NoIndividualLosses where one does not."""
    generator = torch.Generator().manual_seed(2)
    places = [b for b in boundary if b.spread(torch.ones(B), output_shape(b.edge.node)) is not None]
    if not places or len(places) < len(boundary) or entries.source is None:
        raise NoIndividualLosses(f"which of the {B} samples each part of the loss belongs to cannot be told")
    dummy = torch.zeros_like(entries.values, requires_grad=True)
    with torch.enable_grad():
        pulled = torch.autograd.grad(
            entries.source, [b.edge for b in places], dummy * entries.unit, create_graph=True, allow_unused=True
        )
    pairs = [(b, p) for b, p in zip(places, pulled, strict=True) if p is not None and p.requires_grad]
    if not pairs:
        raise NoIndividualLosses(MIXED)
    values = entries.values
    numbers = torch.zeros(values.shape, dtype=torch.long, device=values.device)
    for _ in range(2):
        once, more = [], []
        for place, pull in pairs:
            w = torch.randn(pull.shape, generator=generator).to(pull)
            steps = place.spread(torch.arange(1.0, B + 1).to(pull), tuple(pull.shape))
            assert steps is not None
            once.append(w)
            more.append(w * steps)
        outs = [pull for _, pull in pairs]
        (first,) = torch.autograd.grad(outs, dummy, once, retain_graph=True)
        (second,) = torch.autograd.grad(outs, dummy, more, retain_graph=True)
        numbers = read_ratio(first, second, values, numbers, B)
    return numbers


def read_ratio(first: Tensor, second: Tensor, entries: Tensor, before: Tensor, B: int) -> Tensor:
    """Sample numbers from two moves; entries that are worth nothing may belong to anybody."""
    ratio = torch.where(first != 0, second / torch.where(first != 0, first, 1.0), 0.0)
    numbers = ratio.round().long()
    fits = (ratio - numbers).abs() < 0.02
    counts = (entries.abs() > 1e-12 * entries.abs().max()) if entries.numel() else entries.bool()
    known = fits & (numbers >= 1) & (numbers <= B)
    if bool((counts & ~known).any()) or bool((counts & (before > 0) & (before != numbers)).any()):
        raise NoIndividualLosses(MIXED)
    return torch.where(known, numbers, torch.ones_like(numbers))


def order_of_rows(prediction: Tensor, B: int, batch_dim: int) -> Tensor | None:
    """The sample of each of k B rows that a loss is given. None where they lie as ``batch_dim`` says, or nothing tells."""
    boundary = find_boundary(prediction.grad_fn, B)
    unit = uneven(prediction.numel(), prediction.detach()).reshape(prediction.shape)
    entries = Entries(unit, prediction, unit)
    if stays_apart(entries, B, batch_dim, boundary) is not False:
        return None
    return find_numbers(entries, B, boundary).reshape(len(prediction), -1).amax(1) - 1

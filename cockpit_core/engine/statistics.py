"""One pass over the individual gradients of one parameter: everything that is asked for, in pieces that fit the cache.

The cheapest exact way is taken for each request; gradients are formed only for what has no shortcut, once, in blocks of
samples whose size follows a memory budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import torch
from torch import Tensor

from cockpit_core.engine.clock import Clock
from cockpit_core.foundation.long_sums import row_products, row_squares
from cockpit_core.foundation.sharded import whole
from cockpit_core.foundation.ungraded import ungraded
from cockpit_core.kernels import AnyBins, Counts, ParameterBins, Spec, count_values
from cockpit_core.kernels.native.grams import Products
from cockpit_core.kernels.native.reducing import Reduced, can_reduce, reduce_block
from cockpit_core.layers.contribution import Contribution
from cockpit_core.layers.probe import Probe
from cockpit_core.layers.scratch import Scratch

PROJECTED = 16 * 2**20  # at most this many elements are formed at a time, to be projected
CACHE_BYTES = 4 * 2**20  # a block of formed gradients and its patches stays in the second-level cache


@dataclass
class Request:
    """What is wanted of each layer at this step."""

    norms: bool = False
    squares: bool = False
    spec: Spec | None = None
    memory_budget: int = 256 * 2**20
    scratch: Scratch = field(default_factory=Scratch)
    dots: bool = True
    """Projections on the gradient; else they need not be made, as long as it is checked."""


@dataclass
class LayerStatistics:
    """The reduced individual gradients of one parameter; ``[B]`` vectors are float64 and on the host once all layers of the
    step were read (``layer_result.read_vectors``)."""

    samples: int
    norms: Tensor | None = None  # ||g_n||^2 [B]
    projections: dict[str, Tensor] = field(default_factory=dict)  # name of the direction -> g_n . V [B]
    squares: Tensor | None = None  # sum_n g_n^2 [*shape]
    counts: Counts | None = None
    rows: Tensor | None = None  # g_n [n, D] of the first n samples, where somebody asks for them
    gram: Tensor | None = None  # g_n . g_m [n, n] of the first n samples, likewise
    arrays: dict[str, np.ndarray] = field(default_factory=dict)  # "norms" and projections, once they were read
    products: Products | None = None  # where nothing was projected on: what tells whether the samples add up
    probe: Probe | None = None  # where "gradient" was projected on without it: what tells whether it is right

    @property
    def is_measured(self) -> bool:
        """More than the far end of an Alpha."""
        return "gradient" in self.projections or self.products is not None


def statistics_of(reduced: Reduced, names: Sequence[str], counts: Counts | None = None) -> LayerStatistics:
    """Of a layer that was reduced together with others; ``names`` are those of its directions."""
    norms, dots = reduced.arrays if reduced.arrays is not None else (reduced.norms.numpy(), reduced.dots.numpy())
    along = {name: dots[:, k] for k, name in enumerate(names)}
    projections = {name: torch.from_numpy(own) for name, own in along.items()}
    arrays = {"norms": norms, **along}
    return LayerStatistics(len(norms), reduced.norms, projections, counts=counts, arrays=arrays)


@ungraded
def reduce_layer(
    contribution: Contribution,
    directions: dict[str, Tensor],
    request: Request,
    parameter_bins: ParameterBins | None,
    clock: Clock,
    *,
    keep_rows: int = 0,
    compared: int = 0,
    is_mean: bool = False,
) -> LayerStatistics:
    """All statistics of one parameter from one backward pass. ``keep_rows``: the gradients of so many samples too, if they
    are formed. ``compared``: so many samples are compared with each other, if that can be done in passing. ``is_mean``:
    the direction "gradient" should be the mean of these individual gradients, and what differs will be noticed."""
    at_once = reduce_at_once(contribution, directions, request, clock)
    if at_once is not None:
        return at_once
    result = LayerStatistics(contribution.samples)
    waiting = set()
    if request.squares and not take(result, "squares", clock.timed("squares", contribution.squares)):
        waiting.add("squares")
    if request.spec is not None:
        device = next(iter(directions.values())).device if directions else torch.device("cpu")
        result.counts = Counts.zeros(request.spec, device)
        if not clock.timed("histogram", contribution.count, parameter_bins, request.spec, result.counts):
            waiting.add("counts")
    if request.norms and (waiting or not take(result, "norms", clock.timed("norms", contribution.norms))):
        waiting.add("norms")  # where gradients are formed for something else, their lengths come with it
    pending = dict(directions)
    if not waiting:  # nothing forces us to form gradients: project without
        if is_mean and (both := clock.timed("project gradient", contribution.project_on_mean)) is not None:
            result.projections["gradient"], result.probe = both
            pending.pop("gradient")
        project_pending(contribution, pending, result, clock)
    if waiting or pending:
        form_and_reduce(contribution, pending, request, parameter_bins, waiting, result, clock, keep_rows, compared)
    return result


def reduce_at_once(
    contribution: Contribution, directions: dict[str, Tensor], request: Request, clock: Clock
) -> LayerStatistics | None:
    """Norms, projections and counts of a layer that is so small that one call for all of them is the cheapest way."""
    spec = request.spec
    if not request.norms or request.squares or (spec is not None and spec.joint is not None):
        return None
    bins = None if spec is None else spec.gradient
    shares = share_out(tuple(directions), bins is not None)
    reduced = clock.timed_shares(shares, contribution.reduce_at_once, list(directions.values()), bins)
    if reduced is None:
        return None
    counts = None if spec is None else Counts(spec, reduced.counts, None)
    dots = dict(zip(directions, reduced.dots.unbind(1), strict=False))
    return LayerStatistics(contribution.samples, reduced.norms, dots, counts=counts)


@cache
def share_out(names: tuple[str, ...], counts: bool) -> dict[str, float]:
    """Who pays for one pass: counting takes about as long as four projections, and norms next to nothing."""
    weights = {"norms": 0.1, **{f"project {name}": 1.0 for name in names}} | ({"histogram": 4.0} if counts else {})
    total = sum(weights.values())
    return {work: weight / total for work, weight in weights.items()}


def project_pending(
    contribution: Contribution, pending: dict[str, Tensor], result: LayerStatistics, clock: Clock
) -> None:
    """Into ``result``, as far as nothing has to be formed for it; the rest stays ``pending``."""
    if len(pending) > 1:
        shares = {f"project {name}": 1 / len(pending) for name in pending}
        several = clock.timed_shares(shares, contribution.project_each, list(pending.values()))
        if several is not None:
            result.projections |= zip(pending, several, strict=True)
            pending.clear()
    for name, direction in list(pending.items()):
        projection = clock.timed(f"project {name}", contribution.project, direction)
        if projection is not None:
            result.projections[name] = projection
            pending.pop(name)


def take(result: LayerStatistics, name: str, value: Tensor | None) -> bool:
    if value is None:
        return False
    setattr(result, name, value)
    return True


def form_and_reduce(
    contribution: Contribution,
    directions: dict[str, Tensor],
    request: Request,
    parameter_bins: ParameterBins | None,
    waiting: set[str],
    result: LayerStatistics,
    clock: Clock,
    keep_rows: int,
    compared: int,
) -> None:
    """What has no shortcut: in one pass without stored gradients where there is a kernel for that, else in blocks."""
    spec = request.spec if "counts" in waiting else None
    few = keep_rows < contribution.samples  # for so few gradients alone the others are not formed
    if few and "squares" not in waiting and (spec is None or spec.joint is None):
        bins = None if spec is None else spec.gradient
        reduced = clock.timed("form", contribution.reduce, list(directions.values()), bins, compared)
        if reduced is not None:
            keep_reduced([reduced], list(directions), waiting, result)
            result.gram = reduced.gram
            return
    reduce_blocks(contribution, directions, request, parameter_bins, waiting, result, clock, keep_rows)


def reduce_blocks(
    contribution: Contribution,
    directions: dict[str, Tensor],
    request: Request,
    parameter_bins: ParameterBins | None,
    waiting: set[str],
    result: LayerStatistics,
    clock: Clock,
    keep_rows: int,
) -> None:
    names = list(directions)
    V = stack_flat(list(directions.values()))  # [k, D]
    spec = request.spec if "counts" in waiting else None
    bins = spec.gradient if spec is not None and spec.joint is None else None
    read_again = keep_rows or "squares" in waiting or (spec is not None and bins is None)
    reduced: list[Reduced] = []
    block = block_size(contribution, request.memory_budget, V)
    for lo in range(0, contribution.samples, block):
        hi = min(lo + block, contribution.samples)
        G, scale = clock.timed("form", form_block, contribution, lo, hi, request.scratch, not read_again)  # [n, D]
        if lo < keep_rows:
            result.rows = G.new_empty(keep_rows, G.shape[1]) if result.rows is None else result.rows
            result.rows[lo:hi] = G[: keep_rows - lo]
        reduced.append(reduce_formed(G, scale, V, names, waiting, bins, clock))
        if "squares" in waiting:
            clock.timed("squares", add_squares, result, G, contribution.shape, request.scratch)
        if spec is not None and result.counts is not None and reduced[-1].counts is None:
            clock.timed("histogram", count_values, G, parameter_bins, spec, result.counts)
        del G  # the next block is formed where this one was
    keep_reduced(reduced, names, waiting, result)


def form_block(contribution: Contribution, lo: int, hi: int, scratch: Scratch, may_wait: bool) -> tuple[Tensor, float]:
    """``g_n`` of some samples as [n, D], and a factor that is still to be applied: where ``may_wait``, the kernel that reads
    them does so in passing."""
    formed = contribution.make(lo, hi, scratch)
    if may_wait and can_reduce(formed, 0):
        return as_matrix(formed), contribution.scale
    return as_matrix(contribution.scaled(formed)), 1.0


def as_matrix(formed: Tensor) -> Tensor:
    return formed if formed.dim() == 2 else formed.reshape(len(formed), -1)


def reduce_formed(
    G: Tensor, scale: float, V: Tensor | None, names: list[str], waiting: set[str], bins: AnyBins | None, clock: Clock
) -> Reduced:
    """``||g_n||^2``, ``g_n . V`` and (if there are bins and a kernel for that) counts of ``scale * G``, in one pass where
    possible."""
    if can_reduce(G, len(names)):
        parts = ["norms", *(["histogram"] if bins is not None else []), *(f"project {name}" for name in names)]
        along = None if V is None else V.to(G.dtype)
        return clock.timed_shares({part: 1 / len(parts) for part in parts}, reduce_block, G, along, scale, bins)
    norms = clock.timed("norms", row_squares, G) if "norms" in waiting else G.new_zeros(len(G), dtype=torch.float64)
    if V is None:
        return Reduced(norms * scale**2, norms.new_zeros(len(G), 0))
    share = {f"project {name}": 1 / len(names) for name in names}
    return Reduced(norms * scale**2, scale * clock.timed_shares(share, row_products, G, V.to(G.dtype).T))


def keep_reduced(reduced: list[Reduced], names: list[str], waiting: set[str], result: LayerStatistics) -> None:
    if "norms" in waiting:
        result.norms = side_by_side([part.norms for part in reduced])
    if names:
        dots = side_by_side([part.dots for part in reduced]).unbind(1)
        result.projections |= dict(zip(names, dots, strict=False))
    for part in reduced:
        if part.counts is not None and result.counts is not None:
            result.counts.add(part.counts)


def stack_flat(directions: list[Tensor]) -> Tensor | None:
    if not directions:
        return None
    flat = [direction if direction.dim() == 1 else direction.reshape(-1) for direction in directions]
    return flat[0][None] if len(flat) == 1 else torch.stack(flat)


def side_by_side(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def add_squares(result: LayerStatistics, G: Tensor, shape: torch.Size, scratch: Scratch) -> None:
    squared = torch.mul(G, G, out=scratch.take("squares", tuple(G.shape), G)).sum(0).reshape(shape)
    result.squares = squared if result.squares is None else result.squares.add_(squared)


@ungraded
def project(contribution: Contribution, direction: Tensor) -> Tensor:
    """``g_n . V`` [B] in float64, whichever way."""
    direction = whole(direction)
    projection = contribution.project(direction)
    if projection is not None:
        return projection.double()
    flat = direction.reshape(-1)
    few = int(max(1, min(8, PROJECTED // max(contribution.floats_per_sample, 1))))
    blocks = range(0, contribution.samples, few)
    return torch.cat(
        [
            row_products(
                contribution.form(lo, min(lo + few, contribution.samples)).reshape(-1, flat.numel()), flat[:, None]
            )[:, 0]
            for lo in blocks
        ]
    )


def block_size(contribution: Contribution, memory_budget: int, like: Tensor | None) -> int:
    """How many samples at a time: what fits the cache, at least 4 for fast products, but never more than a quarter of
    the budget, because histograms need room beside what is formed."""
    each = contribution.floats_per_sample * (like.element_size() if like is not None else 8)
    fits_cache, fits_budget = CACHE_BYTES // max(each, 1), memory_budget // 4 // max(each, 1)
    return int(max(1, min(max(fits_cache, 4), fits_budget, contribution.samples)))


def join(parts: list[LayerStatistics]) -> LayerStatistics:
    """The micro-batches of one step are one batch: samples side by side, sums added."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    joined = LayerStatistics(sum(part.samples for part in parts))
    if first.norms is not None:
        joined.norms = torch.cat([part.norms for part in parts])  # type: ignore[misc]
    for name in first.projections:
        joined.projections[name] = torch.cat([part.projections[name] for part in parts])
    for part in parts:
        if part.squares is not None:
            joined.squares = part.squares if joined.squares is None else joined.squares + part.squares
        if part.counts is not None:
            joined.counts = part.counts if joined.counts is None else joined.counts.merge(part.counts)
    return joined

"""One pass over the individual gradients of one parameter: everything that is asked for, in pieces that fit the cache.

The cheapest exact way is taken for each request; gradients are formed only for what has no shortcut, once, in blocks of
samples whose size follows a memory budget.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from cockpit_core.engine.clock import Clock
from cockpit_core.foundation.long_sums import row_products, row_squares
from cockpit_core.foundation.sharded import whole
from cockpit_core.kernels import Counts, ParameterBins, Spec, count_values
from cockpit_core.layers.contribution import Contribution
from cockpit_core.layers.scratch import Scratch

PROJECTED = 16 * 2**20  # so many elements at most are formed at a time, to be projected
CACHE_BYTES = 4 * 2**20  # a block of formed gradients and its patches stays in the second-level cache


@dataclass
class Request:
    """What is wanted of each layer at this step."""

    norms: bool = False
    squares: bool = False
    spec: Spec | None = None
    memory_budget: int = 256 * 2**20
    scratch: Scratch = field(default_factory=Scratch)


@dataclass
class LayerStatistics:
    """The reduced individual gradients of one parameter; ``[B]`` vectors are float64."""

    samples: int
    norms: Tensor | None = None  # ||g_n||^2 [B]
    projections: dict[str, Tensor] = field(default_factory=dict)  # name of the direction -> g_n . V [B]
    squares: Tensor | None = None  # sum_n g_n^2 [*shape]
    counts: Counts | None = None
    rows: Tensor | None = None  # g_n [n, D] of the first n samples, where somebody asks for them


@torch.no_grad()
def reduce_layer(
    contribution: Contribution,
    directions: dict[str, Tensor],
    request: Request,
    parameter_bins: ParameterBins | None,
    clock: Clock,
    *,
    keep_rows: int = 0,
) -> LayerStatistics:
    """All statistics of one parameter from one backward pass. ``keep_rows``: the gradients of so many samples too, if they
    are formed."""
    result = LayerStatistics(contribution.samples)
    device = next(iter(directions.values())).device if directions else torch.device("cpu")
    waiting = set()
    if request.norms and not take(result, "norms", clock.timed("norms", contribution.norms)):
        waiting.add("norms")
    if request.squares and not take(result, "squares", clock.timed("squares", contribution.squares)):
        waiting.add("squares")
    if request.spec is not None:
        result.counts = Counts.zeros(request.spec, device)
        if not clock.timed("histogram", contribution.count, parameter_bins, request.spec, result.counts):
            waiting.add("counts")
    pending = dict(directions)
    if not waiting:  # nothing forces us to form gradients: project without
        for name, direction in directions.items():
            projection = clock.timed(f"project {name}", contribution.project, direction)
            if projection is not None:
                result.projections[name] = projection.double()
                pending.pop(name)
    if waiting or pending:
        form_and_reduce(contribution, pending, request, parameter_bins, waiting, result, clock, keep_rows)
    return result


def take(result: LayerStatistics, name: str, value: Tensor | None) -> bool:
    if value is None:
        return False
    setattr(result, name, value.double() if name == "norms" else value)
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
) -> None:
    names = list(directions)
    V = torch.stack([directions[name].reshape(-1) for name in names], 1) if names else None  # [D, k]
    norms: list[Tensor] = []
    projections: list[Tensor] = []
    block = block_size(contribution, request.memory_budget, V)
    for lo in range(0, contribution.samples, block):
        hi = min(lo + block, contribution.samples)
        G = clock.timed("form", contribution.form, lo, hi, request.scratch).reshape(hi - lo, -1)  # [n, D]
        if lo < keep_rows:
            result.rows = G.new_empty(keep_rows, G.shape[1]) if result.rows is None else result.rows
            result.rows[lo:hi] = G[: keep_rows - lo]
        if "norms" in waiting:
            norms.append(clock.timed("norms", row_squares, G))
        if V is not None:
            share = {f"project {name}": 1 / len(names) for name in names}
            projections.append(clock.timed_shares(share, lambda G=G: row_products(G, V.to(G.dtype))))
        if "squares" in waiting:
            clock.timed("squares", add_squares, result, G, contribution.shape, request.scratch)
        if "counts" in waiting and request.spec is not None and result.counts is not None:
            clock.timed("histogram", count_values, G, parameter_bins, request.spec, result.counts)
        del G  # the next block is formed where this one was
    if norms:
        result.norms = torch.cat(norms)
    for column, name in enumerate(names):
        result.projections[name] = torch.cat([p[:, column] for p in projections])


def add_squares(result: LayerStatistics, G: Tensor, shape: torch.Size, scratch: Scratch) -> None:
    squared = torch.mul(G, G, out=scratch.take("squares", tuple(G.shape), G)).sum(0).reshape(shape)
    result.squares = squared if result.squares is None else result.squares.add_(squared)


@torch.no_grad()
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
    """How many samples at a time: what fits the cache, at least 4 for the products' sake, never over a quarter of the
    budget, for histograms widen and weigh what is formed."""
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

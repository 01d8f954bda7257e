"""Biases and scales of normalisations: their individual gradients are small and already formed, and calling a
reduction for each takes longer than the reduction itself. They wait for the end of the pass, and are reduced together.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cockpit_core.engine.clock import Clock
from cockpit_core.engine.gram import gram_of
from cockpit_core.engine.layer_result import Job, LayerResult
from cockpit_core.engine.statistics import LayerStatistics, Request, statistics_of
from cockpit_core.kernels import Counts
from cockpit_core.kernels.native.comparing import MOST_COMPARED, compare_blocks
from cockpit_core.kernels.native.reducing import Reduced, can_reduce, reduce_blocks
from cockpit_core.layers.contribution import Contribution, Rows
from cockpit_core.layers.standing_in import Tried
from cockpit_core.quantities.measured import choose_samples

MOST = 2**16
"""Elements of what waits: more is worth a call of its own, in which threads share the work."""


def rows_of(part: Contribution) -> Rows | None:
    inner = part.part if isinstance(part, Tried) else part
    return inner if type(inner) is Rows else None


def may_wait(result: LayerResult, directions: dict[str, Tensor], job: Job) -> bool:
    """Is there nothing to do for this layer but one pass over a small block?"""
    part = rows_of(result.parts[0]) if len(result.parts) == 1 else None
    if part is None or not asks_little(job.request):
        return False
    rows, size = part.rows, part.shape.numel()
    count, dtype = rows.numel(), rows.dtype
    if not 0 < count <= MOST or count != part.samples * size or not can_reduce(rows, len(directions)):
        return False
    return all(d.dtype == dtype and d.numel() == size for d in directions.values())


def asks_little(request: Request) -> bool:
    return request.norms and not request.squares and (request.spec is None or request.spec.joint is None)


def reduce_waiting(waiting: Sequence[LayerResult], job: Job, clock: Clock) -> None:
    """Into the results, which hold their directions."""
    by_dtype: dict[torch.dtype, list[tuple[LayerResult, dict[str, Tensor], Rows]]] = {}
    for result in waiting:
        part = rows_of(result.parts[0])
        assert part is not None
        assert result.along is not None
        by_dtype.setdefault(part.rows.dtype, []).append((result, result.along, part))
    bins = None if job.request.spec is None else job.request.spec.gradient
    for some in by_dtype.values():
        blocks = [part.rows.reshape(part.samples, -1) for _, _, part in some]
        along = [list(directions.values()) for _, directions, _ in some]
        names = ["norms", *(["histogram"] if bins is not None else []), *(f"project {name}" for name in some[0][1])]
        shares = {name: 1 / len(names) for name in names}
        reduced = clock.timed_shares(shares, reduce_blocks, blocks, along, [part.scale for *_, part in some], bins)
        for (result, directions, _), own in zip(some, reduced, strict=True):
            result.statistics = as_statistics(own, list(directions), job.request)
            result.kept = list(result.parts)
        if job.gram:
            clock.timed("gram", compare_waiting, [(result, part) for result, _, part in some], blocks, job)


def compare_waiting(some: list[tuple[LayerResult, Rows]], blocks: list[Tensor], job: Job) -> None:
    """Their Gram matrices, with one call where samples are few."""
    counts = [choose_samples([block.shape[0]], job.gram) for block in blocks]
    if max(count for (count,) in counts) <= MOST_COMPARED:
        firsts = [block[:count] for block, (count,) in zip(blocks, counts, strict=True)]
        for (result, _), K in zip(some, compare_blocks(firsts, [part.scale for _, part in some]), strict=True):
            result.gram = K
        return
    for (result, _), count in zip(some, counts, strict=True):
        result.gram = gram_of(result.parts, [None], count, job.request.memory_budget, job.request.scratch)


def as_statistics(reduced: Reduced, names: list[str], request: Request) -> LayerStatistics:
    counts = None if request.spec is None else Counts(request.spec, reduced.counts, None)
    return statistics_of(reduced, names, counts)

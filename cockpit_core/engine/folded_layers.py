"""Convolutions of which norms and a projection on the gradient are all that is asked: no layer needs a turn of its own, and
one call for all of them at the end of the pass lets threads share the layers too.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cockpit_core.engine.clock import Clock
from cockpit_core.engine.layer_result import Job, LayerResult
from cockpit_core.engine.statistics import statistics_of
from cockpit_core.kernels.native.reducing import can_reduce
from cockpit_core.kernels.native.walking import Folded, reduce_convolutions
from cockpit_core.layers.conv import Patches


def may_wait(result: LayerResult, directions: dict[str, Tensor], job: Job) -> bool:
    """Walking over all positions is the cheapest way to all that is asked of this layer."""
    part, request = result.parts[0] if len(result.parts) == 1 else None, job.request
    if type(part) is not Patches or job.keep or job.gram or directions.keys() != {"gradient"}:
        return False
    if not request.norms or request.squares or request.spec is not None or not can_reduce(part.left, 1):
        return False
    gradient = directions["gradient"]
    alike = gradient.dtype == part.left.dtype == part.inner.dtype and gradient.is_cpu
    return alike and gradient.numel() == part.shape.numel() and part.walks_over_all()


def reduce_waiting(waiting: Sequence[LayerResult], job: Job, clock: Clock) -> None:
    """Into the results, which hold their directions."""
    by_dtype: dict[torch.dtype, list[tuple[LayerResult, Folded]]] = {}
    for result in waiting:
        part = result.parts[0]
        assert isinstance(part, Patches)
        assert result.along is not None
        own = Folded(
            part.left, part.inner, part.geometry, part.groups, tuple(part.shape), part.scale, part.around,
            result.along["gradient"],
        )  # fmt: skip
        by_dtype.setdefault(part.left.dtype, []).append((result, own))
    for some in by_dtype.values():
        reduced = clock.timed("form", reduce_convolutions, [own for _, own in some])
        for (result, _), numbers in zip(some, reduced, strict=True):
            result.statistics = statistics_of(numbers, ["gradient"])
            result.kept = list(result.parts)

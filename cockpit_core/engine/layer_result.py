"""What one layer's individual gradients come to: statistics that add up to its gradient, or the reason why there are none."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor

from cockpit_core.engine.alpha.kept import rows_are_smaller
from cockpit_core.engine.capture import Pass
from cockpit_core.engine.clock import Clock
from cockpit_core.engine.gram import fits, gram_of
from cockpit_core.engine.samples.replay import uneven
from cockpit_core.engine.statistics import LayerStatistics, Request, join, project, reduce_layer
from cockpit_core.foundation import long_sums
from cockpit_core.foundation.sharded import is_sharded
from cockpit_core.foundation.transfer import Transfer
from cockpit_core.kernels import Counts, prepare_parameter
from cockpit_core.kernels.native import striding
from cockpit_core.kernels.native.describing import describe
from cockpit_core.layers.contribution import Contribution, Rows
from cockpit_core.quantities.measured import choose_samples

TOLERANCE = {torch.float64: 1e-7, torch.float32: 5e-5}
"""Rounding alone was 3e-6 at most, on networks of ten kinds in float32."""
LESS_PRECISE = 2e-3
"""Where products of matrices may be formed with fewer bits: TensorFloat-32 and the like."""
USED_ELSEWHERE = "the contributions of its module do not add up to its gradient: the weight is used elsewhere too"
HOOKED = (
    "the contributions of its module do not add up to its gradient: a hook on the parameter changes it, or the module works "
    "with another tensor that was computed from it (functional_call, pruning)"
)
ACROSS = "across"
"""A second direction for the check, where a hook or a function may lie between: along the gradient itself no mask or
projection shows."""


@dataclass(eq=False)
class LayerResult:
    """The result of one parameter: ``statistics``, or a ``reason``. ``kept`` is for a projection on the step;
    ``norm`` is that of the gradient, where the check has measured it."""

    name: str
    parts: list[Contribution] = field(default_factory=list)
    statistics: LayerStatistics | None = None
    reason: str = ""
    error: Exception | None = None
    """An error of ours, if that is the reason; raised once the other processes have their answers."""
    kept: list[Contribution] = field(default_factory=list)
    gram: Tensor | None = None
    norm: float | None = None
    directions: dict[str, Tensor] | None = None
    """Those of its first turn, until it has come."""
    along: dict[str, Tensor] | None = None
    """Directions of a layer that is to be reduced together with others."""
    waits_for: Any = None
    """Who does so then (``reducing.KINDS``)."""

    @property
    def samples(self) -> int | None:
        if self.along is not None:
            return self.parts[0].samples
        return None if self.statistics is None else self.statistics.samples


@dataclass
class Job:
    """What is asked of the layers of one step, and the batch that they have seen."""

    passes: list[Pass]
    samples: int
    scale: float
    """What a sample's part of the loss is multiplied with: g_n is the gradient of B times it."""
    request: Request
    gradient: Callable[[str], Tensor]
    """What the backward passes of this step added to ``p.grad``."""
    directions: Callable[[str, Tensor], dict[str, Tensor]]
    """The directions that a layer's gradients are projected on, given its gradient; nothing is asked of a layer
    without one."""
    keep: bool = False
    """Alpha will project on the step."""
    gram: int = 0
    """Samples that the Gram matrix is asked for."""
    half: bool = False
    lengths: Mapping[str, float] = field(default_factory=dict)
    """Norms of gradients, where they are sharded over processes."""
    left_over: Mapping[str, float] = field(default_factory=dict)
    """How long ``p.grad`` was before this step, where it was not zeroed: what was added to it is known less precisely."""
    longest: float = 0.0
    """Norm of the longest gradient that was seen so far: how large rounding may be."""
    transfer: Transfer = field(default_factory=Transfer)
    owns_all: bool = False
    """The gradient is that of this process's samples alone."""


def reduce_parts(result: LayerResult, directions: dict[str, Tensor], job: Job, value: Tensor, clock: Clock) -> None:
    """Into ``result``: the statistics of its parts; what to keep of them (their gradients, where those were formed and are
    smaller); and the Gram matrix of at most so many samples. ``value`` is that of the parameter."""
    parts, request, bins = result.parts, job.request, None
    if request.spec is not None:
        bins = clock.timed("histogram", prepare_parameter, value, request.spec)
    reduced, result.kept, formed = [], [], []
    chosen = choose_samples([part.samples for part in parts], job.gram)
    for part, count in zip(parts, chosen, strict=True):
        smaller = job.keep and rows_are_smaller(part)
        compared = count if len(parts) == 1 and part.compares(count) else 0
        useful = not compared and fits(part, count, request.memory_budget)
        rows = part.samples if smaller else count if useful else 0
        is_mean = is_mean_of(part, directions, job)
        reduced.append(
            reduce_layer(part, directions, request, bins, clock, keep_rows=rows, compared=compared, is_mean=is_mean)
        )
        formed.append(reduced[-1].rows)
        reduced[-1].rows = None
        result.kept.append(Rows(formed[-1], part.shape, 1.0) if smaller and formed[-1] is not None else part)
    result.statistics = join(reduced)
    if result.statistics.counts is not None:
        result.statistics.counts.pack()
    result.gram = reduced[0].gram
    if job.gram and result.gram is None:
        result.gram = clock.timed("gram", gram_of, parts, formed, chosen, request.memory_budget, request.scratch)


def is_mean_of(part: Contribution, directions: dict[str, Tensor], job: Job) -> bool:
    """Are these all samples of the gradient? Nobody is known to change it, and it lies where it can be looked at at once."""
    gradient = directions.get("gradient")
    if gradient is None or job.half or job.left_over or ACROSS in directions:
        return False
    return job.owns_all and part.samples == job.samples and gradient.is_cpu and gradient.dtype in TOLERANCE


def read_vectors(several: Sequence[LayerStatistics], also: Tensor | list[float], transfer: Transfer) -> list[float]:
    """All vectors of these layers, and what else is wanted (``also`` [n]), with one transfer from the device.

    From then on norms and projections lie on the CPU, in double precision: quantities work on them without waiting.
    """
    tables = find_tables([own.counts for own in several if own.counts is not None])
    several = [own for own in several if not own.arrays]  # what was reduced together is known already
    vectors = [v for own in several for v in (own.norms, *own.projections.values()) if v is not None]
    if isinstance(also, list) and not tables and all(vector.is_cpu for vector in vectors):
        for own in several:
            keep_here(own)
        return also
    also = torch.tensor(also, dtype=torch.float64) if isinstance(also, list) else also
    if not several and not tables and also.is_cpu:
        return also.numpy().tolist()
    there = vectors[0].device if vectors else also.device
    both = torch.cat([*vectors, also if also.device == there else also.to(there)])
    host, *moved = transfer.ask([both, *(table for _, _, table in tables)]).read()
    put_tables(tables, moved)
    numbers, start = host.double().numpy(), 0
    for own in several:
        for key in ("norms", *own.projections) if own.norms is not None else tuple(own.projections):
            vector = own.norms if key == "norms" else own.projections[key]
            assert vector is not None
            end = start + vector.shape[0]
            array = own.arrays[key] = numbers[start:end]
            start = end
            if key == "norms":
                own.norms = torch.from_numpy(array)
            else:
                own.projections[key] = torch.from_numpy(array)
    return numbers[start:].tolist()


def keep_here(own: LayerStatistics) -> None:
    """The same of a layer whose vectors are on the host."""
    if own.norms is not None:
        own.norms = own.norms.double()
        own.arrays["norms"] = own.norms.numpy()
    for key, vector in own.projections.items():
        own.projections[key] = double = vector.double()
        own.arrays[key] = double.numpy()


def find_tables(counts: Sequence[Counts]) -> list[tuple[Counts, str, Tensor]]:
    """Tables of histograms that are on a device; packed ones are here."""
    keys = ("table1d", "table2d")
    tables = [(own, key, getattr(own, key, None)) for own in counts if not own.is_packed for key in keys]
    return [(own, key, table) for own, key, table in tables if table is not None and not table.is_cpu]


def put_tables(tables: Sequence[tuple[Counts, str, Tensor]], moved: Sequence[Tensor]) -> None:
    for (own, key, _), table in zip(tables, moved, strict=True):
        own.replace(key, table)
        own.touch()


def judge(results: Sequence[LayerResult], gradients: Mapping[str, Tensor], job: Job) -> dict[str, str]:
    """Do the contributions of each layer add up to its gradient? Returns what is wrong, by name, where something is.

    ``mean(g_n . g) = ||g||^2`` costs nothing extra; all layers are looked at together, with one transfer.
    """
    if not results:
        return {}
    statistics = [result.statistics for result in results if result.statistics is not None]
    for result in results:
        if result.statistics is not None and result.statistics.products is not None:
            result.norm = result.statistics.products.length
            job.longest = max(job.longest, result.norm) if math.isfinite(result.norm) else job.longest
    asked = [result for result in results if has_dots(result, job)]
    also = lengths_of([gradients[r.name] for r in asked])
    for result, norm in zip(asked, read_vectors(statistics, also, job.transfer), strict=True):
        result.norm = norm
        job.longest = max(job.longest, norm) if math.isfinite(norm) else job.longest
    described = describe([own for r in asked if (own := dots_of(r)) is not None])
    sums = {r.name: (own.mean, own.size) for r, own in zip(asked, described, strict=True)}
    problems = {r.name: check(r, gradients[r.name], *sums.get(r.name, (0.0, 0.0)), job) for r in results}
    return {name: problem for name, problem in problems.items() if problem}


def lengths_of(gradients: list[Tensor]) -> Tensor | list[float]:
    """``||g||`` of each, [n] in double precision, where they lie."""
    lengths = striding.try_lengths(gradients) if gradients else []
    return long_sums.norms(gradients) if lengths is None else lengths


def dots_of(result: LayerResult) -> Tensor | None:
    assert result.statistics is not None
    return result.statistics.projections.get("gradient")


def has_dots(result: LayerResult, job: Job) -> bool:
    dots = dots_of(result)
    return dots is not None and dots.shape[0] == job.samples


def check(result: LayerResult, gradient: Tensor, mean: float, scale: float, job: Job) -> str:
    """What is wrong with one layer, whose ``g_n . g`` have this mean and this mean size; "" if they add up."""
    dots = dots_of(result)
    if dots is None:
        return check_products(result, gradient, job)
    if result.norm is None:
        return f"{len(dots)} samples were seen, but the batch has {job.samples}"
    squared = result.norm * result.norm
    rounding = rounding_of(gradient.dtype)
    noise = 256 * rounding * job.longest  # a bias before a normalisation has a gradient of rounding
    lost = 4 * rounding * job.left_over.get(result.name, 0.0) * result.norm
    allowed = tolerance_of(gradient, job.half) * (scale + squared) + noise**2 + lost
    assert result.statistics is not None
    across, probe = result.statistics.projections.get(ACROSS), result.statistics.probe
    if not (abs(mean - squared) <= allowed) and math.isfinite(scale):
        return USED_ELSEWHERE if across is None else HOOKED
    if across is not None and is_changed(result.name, *sizes_of(across), *expect_along(gradient), job):
        return HOOKED
    if probe is not None and is_changed(result.name, *sizes_of(probe.seen), probe.along(gradient), gradient, job):
        return USED_ELSEWHERE
    return "" if squared != 0 or cancels(result, gradient, job) else USED_ELSEWHERE


def check_products(result: LayerResult, gradient: Tensor, job: Job) -> str:
    """The same of a layer that was not projected on its gradient: along a direction where that is large, and along a fixed
    one."""
    assert result.statistics is not None
    products, norm = result.statistics.products, result.norm
    if products is None or norm is None:
        return ""
    if products.norms.shape[0] != job.samples:
        return f"{products.norms.shape[0]} samples were seen, but the batch has {job.samples}"
    (mean, scale), (fixed, expected) = products.along, products.expected
    noise = 256 * rounding_of(gradient.dtype) * job.longest
    allowed = tolerance_of(gradient, job.half) * (scale + expected) + (noise**2 / norm if norm else 0.0)
    if not (abs(mean - expected) <= allowed) and math.isfinite(scale):
        return USED_ELSEWHERE
    if is_changed(result.name, *products.fixed, fixed, gradient, job):
        return USED_ELSEWHERE
    return "" if norm != 0 or cancels(result, gradient, job) else USED_ELSEWHERE


def directions_to_check(gradient: Tensor, may_change: bool) -> dict[str, Tensor]:
    """Where the contributions of a parameter are held against its gradient. ``may_change``: a hook may change that, or its
    module was given another tensor, computed from it."""
    if not may_change or is_sharded(gradient):
        return {"gradient": gradient}
    return {"gradient": gradient, ACROSS: second_direction(gradient)}


def second_direction(gradient: Tensor) -> Tensor:
    return uneven(gradient.numel(), gradient).reshape(gradient.shape)


def expect_along(gradient: Tensor) -> tuple[float, Tensor]:
    return float((second_direction(gradient).double() * gradient.double()).sum()), gradient


def sizes_of(across: Tensor) -> tuple[float, float]:
    """Their mean, and how large they are on average."""
    return float(across.mean()), float(across.abs().mean())


def is_changed(name: str, mean: float, size: float, expected: float, gradient: Tensor, job: Job) -> bool:
    """Is the gradient another one than what the samples add up to, as seen along a second direction? ``mean`` and ``size``
    are those of the samples."""
    scale = size + abs(expected)
    rounding = rounding_of(gradient.dtype) * (256 * job.longest + 4 * job.left_over.get(name, 0.0))
    allowed = tolerance_of(gradient, job.half) * scale + rounding * math.sqrt(gradient.numel())
    return math.isfinite(scale) and abs(mean - expected) > allowed


def cancels(result: LayerResult, gradient: Tensor, job: Job) -> bool:
    """Nothing can be seen along a gradient that is zero: do the contributions cancel along another direction?"""
    parts = result.parts
    if sum(part.samples for part in parts) != job.samples:
        return True  # the other rows are with other processes
    direction = second_direction(gradient)
    along = torch.cat([project(part, direction) for part in parts])
    noise = 256 * max(job.longest, float(along.abs().max())) + 4 * job.samples * job.left_over.get(result.name, 0.0)
    allowed = rounding_of(gradient.dtype) * noise * math.sqrt(gradient.numel())
    return not bool(torch.isfinite(along).all()) or abs(float(along.sum())) <= allowed


def tolerance_of(gradient: Tensor, half: bool) -> float:
    """The size of rounding alone: a sum of many elements grows with the root of their number."""
    dtype = gradient.dtype
    if half or dtype not in TOLERANCE:
        return 5e-2
    exact = dtype == torch.float64 or (gradient.is_cpu and torch.get_float32_matmul_precision() == "highest")
    return (TOLERANCE[dtype] if exact else LESS_PRECISE) + 4 * rounding_of(dtype) * math.sqrt(gradient.numel())


@cache
def rounding_of(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps


def method_of(passes: list[Pass], name: str) -> tuple[str, str, str]:
    """How it was measured, with the reason, and why its samples interact, if they do."""
    worst, interacts = None, ""
    for call in [held.call for one in passes for held, _ in one.by_parameter.get(name, ())]:
        if call.statistics is None:  # the others tell of the samples of all processes
            interacts = interacts or call.interacts
        if (call.method == "fallback" and (worst is None or worst.method != "fallback")) or (
            call.reason and worst is None
        ):
            worst = call
    return (worst.method, worst.reason, interacts) if worst is not None else ("rule", "", interacts)

"""From what a backward pass left behind to the statistics of one parameter, checked against its gradient."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cockpit_core.engine.alpha.keeping import rows_are_smaller
from cockpit_core.engine.capture import Pass, contribution_of, free
from cockpit_core.engine.gram import choose_samples, fits, gram_of
from cockpit_core.engine.statistics import LayerStatistics, join, reduce_layer
from cockpit_core.engine.step import GradientMark
from cockpit_core.foundation import long_sums
from cockpit_core.kernels import prepare_parameter
from cockpit_core.layers.contribution import Contribution, Rows, Zeros
from cockpit_core.layers.fallback import gradients_of
from cockpit_core.layers.registry import NotCovered

if TYPE_CHECKING:
    from cockpit_core.engine.engine import Engine

COSTLY = 3.0  # a fallback that takes longer than so many backward passes of its layer is worth a note
TOLERANCE = {torch.float64: 1e-7, torch.float32: 2e-3}


def reduce_parameter(engine: Engine, name: str, passes: list[Pass], samples: int, gradient: Tensor) -> None:
    """Everything that is asked of one parameter, over all passes; then free what nobody needs any more."""
    plan, state = engine.step.plan, engine.step
    directions = {"gradient": gradient} if plan.measures_individual else {}
    if plan.alpha_end and name in engine.previous_update:
        directions["step"] = engine.previous_update[name]
    if not directions or (not was_used(passes, name) and not bool(gradient.any())):
        return  # what is left of another backward pass: the generator's, where the discriminator is trained
    try:
        scale = samples / state.loss_scale
        parts = [part_of(engine, f, name, scale, used=was_used(passes, name)) for f in passes]
        keep = plan.alpha_start and (engine.keeps_contributions or state.stale)
        while True:
            state.reduced[name], small, K = reduce_parts(
                engine, name, parts, directions, keep=keep, gram=plan.gram_samples
            )
            problem = check(engine, name, gradient, samples)
            if problem is None:
                break
            if not use_next_way(parts):
                raise NotCovered(problem)
        note_method(engine.cover.methods, name, passes, state.interacts)
        note_costs(engine, parts)
        if K is not None:
            state.gram.add(name, K)
            state.gram.choose([part.samples for part in parts], plan.gram_samples)
        if keep:
            repeatable = engine.may_repeat and all(
                len(f.forwards) == 1 and name not in f.direct and name not in f.shared for f in passes
            )
            state.kept.add(name, small, may_repeat=repeatable)
    except NotCovered as reason:
        state.reduced.pop(name, None)
        state.failures[name] = str(reason)
    for found in passes:
        free(found, name)


def part_of(engine: Engine, found: Pass, name: str, scale: float, *, used: bool) -> Contribution:
    """Of one pass; nothing, where only other passes of the step went through it."""
    if used and not was_used([found], name):
        return Zeros(found.batch_size, engine.cover.parameters[name].shape, scale)
    return contribution_of(found, name, scale, engine.cover, engine.memory_budget, engine.mute)


def was_used(passes: list[Pass], name: str) -> bool:
    return any(name in found.by_parameter or name in found.direct for found in passes)


def use_next_way(parts: list[Contribution]) -> bool:
    """Every part moves on, also behind one that cannot."""
    moved = [part.next_way() for part in parts]
    return all(moved)


def reduce_parts(
    engine: Engine,
    name: str,
    parts: list[Contribution],
    directions: dict[str, Tensor],
    *,
    keep: bool = False,
    gram: int = 0,
) -> tuple[LayerStatistics, list[Contribution], Tensor | None]:
    """The statistics; what to keep of the parts: their gradients, where those were formed and are smaller; and the Gram
    matrix of at most ``gram`` samples."""
    request = engine.step.plan.request(engine.step.scratch)
    bins = None
    if request.spec is not None:
        bins = engine.clock.timed("histogram", prepare_parameter, engine.cover.value(name), request.spec)
    found, small, formed = [], [], []
    chosen = choose_samples([part.samples for part in parts], gram)
    for part, count in zip(parts, chosen, strict=True):
        smaller = keep and rows_are_smaller(part)
        rows = part.samples if smaller else count if fits(part, count, engine.memory_budget) else 0
        found.append(reduce_layer(part, directions, request, bins, engine.clock, keep_rows=rows))
        formed.append(found[-1].rows)
        found[-1].rows = None
        small.append(Rows(formed[-1], part.shape, 1.0) if smaller and formed[-1] is not None else part)
    scratch, budget = engine.step.scratch, engine.memory_budget
    K = engine.clock.timed("gram", gram_of, parts, formed, chosen, budget, scratch) if gram else None
    return join(found), small, K


def check(engine: Engine, name: str, gradient: Tensor, samples: int) -> str | None:
    """Do the contributions add up to the gradient? ``mean(g_n . g) = ||g||^2`` costs nothing extra."""
    dots = engine.step.reduced[name].projections.get("gradient")
    if dots is None:
        return None
    if len(dots) != samples:
        return f"{len(dots)} samples were seen, but the batch has {samples}"
    mean, scale = float(dots.mean()), float(dots.abs().mean())
    norm = long_sums.norm(gradient)
    squared = norm * norm
    engine.step.seen_norms[name] = norm, GradientMark.of(engine.cover.parameters[name])
    allowed = tolerance_of(engine, gradient) * (scale + squared) + noise_of(engine, gradient) ** 2
    if not (abs(mean - squared) <= allowed) and torch.isfinite(dots).all():
        return "the contributions of its module do not add up to its gradient: the weight is used elsewhere too"
    return None


def noise_of(engine: Engine, gradient: Tensor) -> float:
    """How long a gradient is that consists of rounding alone: that of a bias before a normalisation, which undoes it."""
    longest = max((norm for norm, _ in engine.step.seen_norms.values() if math.isfinite(norm)), default=0.0)
    return 256 * torch.finfo(gradient.dtype).eps * longest


def tolerance_of(engine: Engine, gradient: Tensor) -> float:
    """Rounding alone; what many elements sum up to grows with the root of their number."""
    if engine.step.half or gradient.dtype not in TOLERANCE:
        return 5e-2
    return TOLERANCE[gradient.dtype] + 4 * torch.finfo(gradient.dtype).eps * math.sqrt(gradient.numel())


def note_method(methods: dict[str, tuple[str, str]], name: str, passes: list[Pass], interacts: str) -> None:
    """How it is measured. Once samples have been seen to interact, they may do so again."""
    calls = [held.call for found in passes for held, _ in found.by_parameter.get(name, ())]
    reason = interacts or next((call.interacts for call in calls if call.interacts), "")
    if reason and methods.get(name, ("",))[0] != "contribution":
        methods[name] = ("contribution", reason)
    methods.setdefault(name, method_of(passes, name))


def method_of(passes: list[Pass], name: str) -> tuple[str, str]:
    calls = [held.call for found in passes for held, _ in found.by_parameter.get(name, ())]
    worst = next((c for c in calls if c.method == "fallback"), None) or next((c for c in calls if c.reason), None)
    return (worst.method, worst.reason) if worst else ("rule", "")


def note_costs(engine: Engine, parts: list) -> None:
    """A fallback that takes much longer than its layer says so in the header. Timed at its second step: not cold."""
    for part in parts:
        gradients = gradients_of(part)
        if gradients is None or id(gradients) in engine.timed:
            continue
        module = gradients.call.module
        seen = engine.fallback_steps[module] = engine.fallback_steps.get(module, 0) + 1
        engine.timed = {id(gradients)}
        ratio = gradients.cost_ratio() if seen == 2 else None
        if ratio is not None and ratio > COSTLY:
            path = engine.cover.paths.get(id(module)) or "the whole model"
            name = type(module).__name__
            engine.cost_notes[path] = (
                f"{path} ({name}) has no rule of its own: its individual gradients take {ratio:.0f} times as long "
                "as its backward pass"
            )

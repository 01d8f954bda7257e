"""What a step did to the loss of its own batch, and how that loss is curved: with the samples of the step alone.

``f(tau)`` is the loss of the batch of step t on the line through ``theta_t`` and ``theta_{t+1}``. At ``theta_t`` it is
known with its slope; at ``theta_{t+1}`` one more forward and backward pass gives both. Curvature ``v' H v`` at ``theta_t``
takes a forward, a backward and a double backward pass, and no more memory than they do. All of it is summed over the
micro-batches of the step, and averaged over processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from cockpit_core.curvature import NoCurvature
from cockpit_core.curvature.point import explained
from cockpit_core.engine.cover import Cover
from cockpit_core.foundation.faults import Explained
from cockpit_core.layers.module_state import NotRepeatable
from cockpit_core.quantities.measured import Line, OwnBatch
from cockpit_core.quantities.products import product

Losses = Callable[[], Iterable[Tensor]]
"""The loss of each micro-batch, evaluated again, with a graph of its own."""
AGREES = {torch.float64: 1e-7, torch.float32: 2e-3}
"""How far a repeated loss and slope may be from the first ones, relatively."""


Numbers = dict[str, float]


def dot(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    return sum(float(product(one[name], other[name])) for name in one if name in other)


def measure_slope(losses: Losses, parameters: Mapping[str, Tensor], step: Mapping[str, Tensor]) -> Numbers:
    """Loss and ``g . s`` at the parameters as they are now."""
    names, loss, slope = list(step), 0.0, 0.0
    for part in losses():
        gradients = torch.autograd.grad(part, [parameters[n] for n in names], allow_unused=True)
        slope += dot({n: g for n, g in zip(names, gradients, strict=True) if g is not None}, step)
        loss += float(part.detach())
    return {"loss": loss, "slope": slope}


def measure_curvatures(
    losses: Losses, parameters: Mapping[str, Tensor], directions: Mapping[str, Mapping[str, Tensor]]
) -> dict[str, float]:
    """``v' H v`` by direction, and the loss, at the parameters as they are now."""
    bends = dict.fromkeys((*directions, "loss"), 0.0)
    names = list(next(iter(directions.values())))
    chosen = [parameters[n] for n in names]
    with explained(), sdpa_kernel(SDPBackend.MATH):  # the fused kernels have no second derivative
        for part in losses():
            bends["loss"] += float(part.detach())
            gradient = torch.autograd.grad(part, chosen, create_graph=True, allow_unused=True)
            for key, v in directions.items():
                pairs = [(g, v[n]) for n, g in zip(names, gradient, strict=True) if g is not None and g.requires_grad]
                if not pairs:
                    continue
                along = torch.stack([(g * own.to(g.dtype)).sum() for g, own in pairs]).sum()
                bent = torch.autograd.grad(along, chosen, retain_graph=True, allow_unused=True)
                bends[key] += dot({n: h for n, h in zip(names, bent, strict=True) if h is not None}, v)
            del gradient
    return bends


def check_again(line: Line, loss: float, slope: float, scale: float, dtype: torch.dtype) -> None:
    """The first ends must come out as they were; ``scale`` is ``||g|| ||s||``, the largest that the slope could be."""
    allowed = AGREES.get(dtype, 5e-2)
    if not (math.isfinite(line.loss_start) and math.isfinite(line.slope_start)):
        raise NotRepeatable("the loss or its gradient is not finite")
    check_loss(line, loss, dtype)
    if abs(slope - line.slope_start) > allowed * scale:
        raise NotRepeatable(
            "the gradient is not that of loss_fn alone (a penalty was added to the loss, or a gradient was changed)"
        )


def check_loss(line: Line, loss: float, dtype: torch.dtype) -> None:
    if abs(loss - line.loss_start) > AGREES.get(dtype, 5e-2) * max(abs(loss), abs(line.loss_start), 1e-12):
        raise NotRepeatable(
            f"the forward pass did not come out the same when it was repeated, or more than loss_fn was differentiated (a "
            f"penalty, another loss): {loss:.6g} instead of {line.loss_start:.6g}"
        )


@dataclass
class Setting:
    """The step that was taken: its samples, what it did, and how to evaluate its loss where it began and where it ended."""

    losses: Losses
    parameters: Mapping[str, Tensor]
    at_start: Callable[[], AbstractContextManager[None]]
    """Puts the parameters back to ``theta_t`` for a while."""
    update: Mapping[str, Tensor]
    gradients: Mapping[str, Tensor]
    loss: float
    length: float
    gradient_norm: float
    share: Callable[[Any], list[Any]]
    """The results of all processes, one after the other; just our own if there are no others."""

    @property
    def dtype(self) -> torch.dtype:
        return next(iter(self.update.values())).dtype


def measure_own_batch(setting: Setting, needs: set[str], check: bool) -> OwnBatch:
    """All that is asked for by ``needs``: "far_end", "gradient_curvature", "update_curvature"."""
    line = Line(setting.length, setting.loss, dot(setting.gradients, setting.update))
    directions = {"gradient": setting.gradients, "update": setting.update}
    directions = {key: v for key, v in directions.items() if f"{key}_curvature" in needs}
    mine: dict[str, Numbers | str] = {}
    if check:
        mine["start"] = attempt_at_start(
            setting, partial(measure_slope, setting.losses, setting.parameters, setting.update)
        )
    if "far_end" in needs:
        mine["end"] = attempt(partial(measure_slope, setting.losses, setting.parameters, setting.update))
    if directions:
        mine["bent"] = attempt_at_start(
            setting, partial(measure_curvatures, setting.losses, setting.parameters, directions)
        )
    numbers = join_numbers(setting.share(mine))
    start, bent = numbers.get("start"), numbers.get("bent")
    try:
        if isinstance(start, dict):
            scale = setting.length * setting.gradient_norm
            check_again(line, start["loss"], start["slope"], scale, setting.dtype)
        if isinstance(bent, dict):  # it has come by the start anyway
            check_loss(line, bent["loss"], setting.dtype)
    except NotRepeatable as reason:
        numbers = dict.fromkeys(numbers, str(reason))
    return fill(line, directions, numbers)


def fill(line: Line, directions: Mapping[str, Mapping[str, Tensor]], numbers: dict[str, Numbers | str]) -> OwnBatch:
    result, start = OwnBatch(), numbers.get("start")
    if isinstance(start, str):
        numbers = dict.fromkeys(numbers, start)
        result.reasons["preconditioned"] = start
    end, bent = numbers.get("end"), numbers.get("bent")
    if isinstance(end, dict):
        line.loss_end, line.slope_end = end["loss"], end["slope"]
        result.line = line
    elif end is not None:
        result.reasons["far_end"] = end
    for key, v in directions.items():
        squared = dot(v, v)
        if not isinstance(bent, dict):
            result.reasons[f"{key}_curvature"] = str(bent)
        elif squared > 0:
            result.curvatures[key] = bent[key] / squared
        else:
            result.reasons[f"{key}_curvature"] = f"the {key} is zero"
    return result


def join_numbers(answers: list[dict[str, Numbers | str]]) -> dict[str, Numbers | str]:
    """The loss is the mean of the processes' losses; where one has a problem, that is the answer."""
    joined: dict[str, Numbers | str] = {}
    for job in answers[0]:
        each = [answer[job] for answer in answers]
        problem = next((one for one in each if isinstance(one, str)), None)
        numbers = [one for one in each if isinstance(one, dict)]
        joined[job] = problem or {key: sum(own[key] for own in numbers) / len(numbers) for key in numbers[0]}
    return joined


def attempt(compute: Callable[[], Numbers]) -> Numbers | str:
    """The numbers, or why there are none: an error on one process must not keep it from answering the others."""
    try:
        return compute()
    except Exception as error:
        return explain(error)


def explain(error: Exception) -> str:
    """Our own reasons are written to be read; an error of the user's modules needs its type."""
    if isinstance(error, (NotRepeatable, NoCurvature, Explained)):
        return str(error)
    return f"the forward pass cannot be repeated: {type(error).__name__}: {error}"


def attempt_at_start(setting: Setting, compute: Callable[[], Numbers]) -> Numbers | str:
    with setting.at_start():
        return attempt(compute)


def is_turn(count: int) -> bool:
    """At the 1st, 2nd, 4th, 8th, ... time, check whether a repetition gives the same as the first time. Its loss at the
    start is compared wherever it is computed, and always where modules have hooks, which are not called again."""
    return count.bit_count() == 1


def why_not_again(cover: Cover, loss_fn: Any, *, in_closure: bool, mixes_processes: bool) -> str:
    """What rules out looking at the samples again, before anything is tried; "" if nothing does."""
    moved = [n for n, p in cover.parameters.items() if n not in cover.selected and p.grad is not None]
    if in_closure:
        return "optimizer.step(closure) evaluates the loss at other parameters itself"
    if cover.sharded:
        return "the parameters are sharded over processes, so the forward pass cannot be repeated"
    if moved:
        return f"layers= leaves out {moved[0]}, which the step moves too"
    if isinstance(loss_fn, nn.Module) and any(p.requires_grad for p in loss_fn.parameters()):
        return "the loss has parameters of its own, which the step may move too"
    if mixes_processes:
        return "SyncBatchNorm mixes the samples of several processes, so the forward pass cannot be repeated"
    return ""

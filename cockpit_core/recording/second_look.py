"""The samples of a step once more, after it: for quantities that ask what the step did to its own batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from torch import Tensor, nn

from cockpit_core.curvature import Eigenpair
from cockpit_core.distributed.group import Group
from cockpit_core.engine.cover import Cover
from cockpit_core.engine.curving.measuring import Curvature
from cockpit_core.engine.forward import at
from cockpit_core.engine.own_batch import (
    Losses,
    Setting,
    measure_own_batch,
    why_not_again,
)
from cockpit_core.engine.preconditioned import PreconditionedHessian, find_largest
from cockpit_core.engine.step import StepState
from cockpit_core.quantities import NoValue
from cockpit_core.quantities.measured import OwnBatch, ParameterState
from cockpit_core.quantities.needs import REPEATED
from cockpit_core.quantities.norms import combine
from cockpit_core.quantities.second_moments import find_preconditioners


def losses_again(state: StepState, model: nn.Module, loss_fn: Any) -> Losses:
    """Evaluates the losses of the step again, each with a graph of its own."""
    module = loss_fn if isinstance(loss_fn, nn.Module) else None
    return partial(state.again.losses, model, module, state.passes, state.loss_scale)


def look_again(
    state: StepState,
    cover: Cover,
    loss_fn: Any,
    update: Mapping[str, Tensor],
    update_norms: Callable[[], Mapping[str, float]],
    *,
    needs: set[str],
    group: Group,
    quietly: Callable[[], AbstractContextManager[None]],
    checks: bool,
) -> OwnBatch:
    """Where the step began and where it ended. ``checks``: it is this step's turn to be compared with the first pass.
    ``quietly``: passes of ours call no hook and draw no number."""
    reason = why_not_again(
        cover, loss_fn, in_closure=state.in_closure, mixes_processes=group.mixes_samples(cover.model)
    )
    if state.in_closure and not state.passes:
        reason = "no backward pass was seen before the step"
    later = [name for name in update if name not in state.gradients]
    if later and not reason:
        reason = f"the step moved {later[0]}, whose gradient came after the loss: several optimizers take turns"
    if reason or not update:
        return OwnBatch(reasons=dict.fromkeys(REPEATED, reason or "no parameter has a gradient"))
    setting = Setting(
        losses=losses_again(state, cover.model, loss_fn),
        parameters=cover.parameters,
        at_start=partial(at, cover.parameters, state.theta),
        update=update,
        gradients={n: state.gradients[n] for n in update},
        loss=state.loss,
        length=combine(dict(update_norms())),
        gradient_norm=combine({n: state.gradient_norms[n] for n in update}),
        share=partial(group.gather, "own batch"),
    )
    with quietly():
        return measure_own_batch(setting, needs, checks or state.again.has_hooks)


def find_preconditioned(
    state: StepState,
    cover: Cover,
    loss_fn: Any,
    states: Mapping[str, ParameterState],
    curvature: Curvature,
    *,
    group: Group,
    memory_budget: int,
) -> tuple[Eigenpair, dict[str, Tensor]]:
    """The largest eigenvalue as the optimizer sees it, and its vector by layer, to start from the next time."""
    reason = group.why_not("preconditioned")
    if reason:
        raise NoValue(reason)
    known = curvature.eigenvectors.get("preconditioned", {})
    made = find_preconditioners(dict(states))
    start = [known[n] for n in made] if known.keys() == made.keys() else None
    with at(cover.parameters, state.theta):
        losses = losses_again(state, cover.model, loss_fn)
        operator = PreconditionedHessian(losses, len(state.passes), cover.parameters, made)
        pair = find_largest(operator, start, curvature.generator, memory_budget)
    return pair, dict(zip(made, pair.start, strict=False))

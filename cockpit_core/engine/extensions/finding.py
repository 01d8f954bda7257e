"""Which samples BackPACK is shown: those of the step's one backward pass, or the reason why not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from cockpit_core.distributed.group import Group
from cockpit_core.engine.again import Again, Evaluation
from cockpit_core.engine.capture import Pass
from cockpit_core.engine.cover import Cover
from cockpit_core.engine.extensions.results import BackpackValues
from cockpit_core.engine.extensions.running import LossCall, Samples, run_extensions
from cockpit_core.engine.forward import Forward
from cockpit_core.engine.step import StepState

BEGINS = "BackPACK's second order begins at a loss module that takes the model's output"


def measure_extensions(
    extensions: Mapping[str, Any], cover: Cover, loss_fn: Any, state: StepState, group: Group, batch_dim: int
) -> BackpackValues:
    """At the parameters as they are now."""
    parameters = {n: p for n, p in cover.trainable().items() if n in state.gradient_norms}
    reason = why_not_here(state, cover, group, batch_dim) or why_not_one(state.passes)
    if not reason and not parameters:
        reason = "no parameter has a gradient"
    if reason:
        return BackpackValues({}, dict.fromkeys(extensions, reason))
    forward: Forward = state.passes[0].forwards[0]
    seeds = {position: gradient / state.loss_scale for position, gradient in forward.gradients.items()}
    loss = find_loss(state.again, state.again.of_pass(state.passes[0], by_module=True), forward, loss_fn)
    return run_extensions(extensions, Samples(cover.model, forward, seeds, loss, parameters))


def why_not_here(state: StepState, cover: Cover, group: Group, batch_dim: int) -> str:
    reason = group.why_not("BackPACK")
    if reason:
        return reason
    if state.in_closure:
        return "optimizer.step(closure) evaluates the loss at other parameters itself"
    return "BackPACK takes the first dimension for the samples" if batch_dim != 0 else ""


def why_not_one(passes: list[Pass]) -> str:
    count = sum(pass_.count for pass_ in passes)
    if count != 1:
        return f"the step has {count} backward passes, and BackPACK's values of parts of a batch do not add up"
    calls = len(passes[0].forwards)
    if calls != 1:
        return "the model itself was not called" if not calls else f"the loss looks at {calls} calls of the model"
    return ""


def find_loss(again: Again, evaluations: list[Evaluation], forward: Forward, loss_fn: Any) -> LossCall | str:
    if len(evaluations) != 1:
        return BEGINS if not evaluations else f"{BEGINS}, and several losses were added"
    (one,) = evaluations
    if one.function is not None:
        place = again.ends.get(one.function.output)
        if place is None or again.forwards[place[0]] is not forward:
            return f"{BEGINS}; something stands between them"
        return LossCall(one.function.module, one.function.target, place[1])
    if one.call is None or not isinstance(loss_fn, nn.Module):
        return f"{BEGINS}: {one.problem or 'here the model computes its loss itself'}"
    if one.problem:
        return one.problem
    if len(one.call.args) != 2 or one.call.kwargs or list(one.programs) != [0]:
        return f"{BEGINS}, and a target"
    program = one.programs[0]
    if not program.is_output or again.forwards[program.ends[0][0]] is not forward:
        return f"{BEGINS}; something stands between them"
    return LossCall(loss_fn, one.call.args[1], program.ends[0][1])

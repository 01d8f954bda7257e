"""Why a step that was to be tracked cannot be. The reason is given, nothing is guessed."""

from __future__ import annotations

import torch

from cockpit_core.distributed.group import Group
from cockpit_core.engine.cover import Cover
from cockpit_core.engine.step import StepState

NO_LOSS = (
    "Cockpit saw no backward pass through this model before optimizer.step(). Gradients that come from "
    "torch.autograd.grad, or are written by hand, have no loss that could be tracked: call loss.backward()."
)


def why_unclear(state: StepState, cover: Cover) -> str:
    """Is it known which gradient and which move belong to this step? "" if so."""
    strangers = cover.strangers()
    if strangers:
        more = f" and {len(strangers) - 1} more" if len(strangers) > 1 else ""
        return (
            f"the model has parameters that it did not have when track() was called ({strangers[0]}{more}). Close this run, "
            "and call track() after they were added or replaced"
        )
    if state.open is not None and torch._C._current_graph_task_id() != -1:
        return "optimizer.step() runs inside the backward pass"
    if state.elsewhere is not None and state.place is not None and not state.place.is_back(state.elsewhere):
        return (
            "the parameters were moved between two backward passes, and not back before optimizer.step(). If both belong to "
            "one step, put all that follows the first loss.backward() into `with run.stepping():`"
        )
    return ""


def why_alone(group: Group) -> str:
    """The other processes cannot be asked at this step, or never again: measure nothing rather than a part."""
    if group.is_joining:
        return "inside DistributedDataParallel.join() a process may have run out of data; nothing is measured there"
    return f"nothing more is measured: {group.broken}" if group.broken else ""

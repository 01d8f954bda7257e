"""Expensive checks of a suspicion: the samples of a tracked step once more, at other parameters or in another mode.

A diagnosis names the probe that would decide it (``Diagnosis.probe``); the judge asks for one, and the next tracked step that
has its forward pass on record carries it out. Its numbers are signals of that step, ``signal/probe/...``. Passes run
on copies, with silent hooks and the random numbers as they were, so that training goes on as if nothing had happened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from cockpit_core.distributed.group import Group
from cockpit_core.engine.again import Again, Change
from cockpit_core.engine.cover import Cover
from cockpit_core.engine.forward import at
from cockpit_core.engine.own_batch import AGREES, Losses, why_not_again
from cockpit_core.engine.step import StepState
from cockpit_core.layers.module_state import NotRepeatable
from cockpit_core.recording.mixing import measure_looking_ahead, measure_mixing
from cockpit_core.recording.second_look import losses_again

PREFIX = "signal/probe/"
FACTORS = {"quarter": 0.25, "whole": 1.0, "four": 4.0, "sixteen": 16.0}
"""Lengths of trial steps along the step that was taken, in its own lengths."""


@dataclass
class Scene:
    """Where the step began, what it was, and how to evaluate its loss."""

    losses: Losses
    parameters: Mapping[str, Tensor]
    theta: Mapping[str, Tensor]
    update: Mapping[str, Tensor]
    again: Again
    answered: Callable[[Change], Iterable[Tensor]]
    """The losses of the step if the model had given other answers."""
    model: nn.Module
    batch_dim: int

    def loss_with(self, change: Change) -> float:
        return sum(float(part.detach()) for part in self.answered(change))

    def loss_at(self, factor: float) -> float:
        """The loss of the step's own samples, ``factor`` times as far along it."""
        with torch.no_grad():
            moved = {n: self.theta[n] + factor * s if factor else self.theta[n] for n, s in self.update.items()}
        with at(self.parameters, moved):
            return sum(float(part.detach()) for part in self.losses())


def follow_line(scene: Scene) -> dict[str, float]:
    """The loss of the batch behind steps of other lengths: is the learning rate too low, too high, or is it noise?"""
    return {name: scene.loss_at(factor) for name, factor in FACTORS.items()}


def evaluate(scene: Scene) -> dict[str, float]:
    """The loss of the batch as evaluation would give it: without dropout, with running statistics."""
    with in_eval_mode(scene.again):
        return {"eval": scene.loss_at(0.0)}


def ignore_inputs(scene: Scene) -> dict[str, float]:
    """What the network would lose if it gave all samples of the batch the same answer, the mean of its own: no better loss
    than that means that nothing about the inputs is used. Any loss has this number, whoever wrote it."""
    return {"mean_loss": scene.loss_with(mean_answer)}


def mean_answer(output: Tensor, batch_size: int) -> Tensor:
    if not output.is_floating_point():
        return output
    if output.dim() == 0 or len(output) < FEWEST or len(output) % max(1, batch_size):
        raise NotRepeatable("the model gives no answer for each sample")
    return output.mean(0, keepdim=True).expand_as(output).contiguous()


def same_answer(output: Tensor, batch_size: int) -> Tensor:
    return output


def exchange_half(scene: Scene) -> dict[str, float]:
    """How far the answers to half of the batch depend on the other half: 0 where every sample is answered by itself. And how far
    answers lie apart: 0 where they are the same for all samples."""
    with in_eval_mode(scene.again), at(scene.parameters, dict(scene.theta)):
        known = [measure_mixing(scene.model, one, scene.batch_dim) for one in scene.again.forwards]
    return {"mixed": max(moved for moved, _ in known), "apart": max(apart for _, apart in known)}


def look_ahead(scene: Scene) -> dict[str, float]:
    """How far the answers to the places of a text depend on later places."""
    with at(scene.parameters, dict(scene.theta)):
        return {"looks_ahead": max(measure_looking_ahead(scene.model, one) for one in scene.again.forwards)}


PROBES: dict[str, Callable[[Scene], dict[str, float]]] = {
    "line": follow_line,
    "mode": evaluate,
    "mean": ignore_inputs,
    "half": exchange_half,
    "ahead": look_ahead,
}
FEWEST = 8  # samples whose mean says something


@contextmanager
def in_eval_mode(again: Again) -> Iterator[None]:
    """Repeated calls run on copies of what modules keep; here the copies are in evaluation mode."""
    kept = [own for forward in again.forwards for own in forward.state.attributes.values() if own.get("training")]
    try:
        for own in kept:
            own["training"] = False
        yield
    finally:
        for own in kept:
            own["training"] = True


def run_probe(
    name: str,
    state: StepState,
    cover: Cover,
    loss_fn: Any,
    update: Mapping[str, Tensor],
    *,
    group: Group,
    batch_dim: int,
    quietly: Callable[[], AbstractContextManager[None]],
) -> dict[str, float]:
    """Scalars of the record. ``signal/probe/NAME`` is 1 where the probe succeeded, and 0 where it could not be made,
    so that nobody keeps asking for it."""
    mixes = group.mixes_samples(cover.model)
    reason = group.why_not("probe") or why_not_again(cover, loss_fn, in_closure=state.in_closure, mixes_processes=mixes)
    tried = {PREFIX + name: 0.0}
    if reason or not update or state.loss is None:
        return tried
    losses = losses_again(state, cover.model, loss_fn)
    module = loss_fn if isinstance(loss_fn, nn.Module) else None
    answered = partial(state.again.losses_of, loss_fn=module, passes=state.passes, scale=state.loss_scale)
    scene = Scene(losses, cover.parameters, state.theta, update, state.again, answered, cover.model, batch_dim)
    try:
        with quietly():
            again = scene.loss_with(same_answer) if name == "mean" else scene.loss_at(0.0)
            if not agrees(again, state.loss, next(iter(update.values())).dtype):
                return tried
            numbers = PROBES[name](scene)
    except (
        Exception,
        SystemExit,
    ):  # an error in the user's modules, or not repeatable: there is no probe, and training goes on
        return tried
    return {PREFIX + name: 1.0, PREFIX + "loss": state.loss, **{PREFIX + key: value for key, value in numbers.items()}}


def agrees(value: float, known: float, dtype: torch.dtype) -> bool:
    """A pass that does not give the same as the first time would measure something else."""
    return abs(value - known) <= AGREES.get(dtype, 5e-2) * max(abs(value), abs(known), 1e-12)

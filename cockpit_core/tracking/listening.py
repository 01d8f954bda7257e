"""Hears every loss on its way to ``backward``: on idle steps only to glance at its value, in microseconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from cockpit_core.engine.engine import Engine
from cockpit_core.engine.hooks import is_imagined
from cockpit_core.engine.loss.roots import Root
from cockpit_core.engine.place import Unseen
from cockpit_core.engine.scaler import find_scaler, unscaled
from cockpit_core.engine.survey import survey
from cockpit_core.foundation.faults import Faults
from cockpit_core.signals.collector import Collector
from cockpit_core.tracking.alive import ALIVE
from cockpit_core.tracking.arriving import Arriving
from cockpit_core.tracking.optimizers import is_stepping, parameters_of
from cockpit_core.tracking.pace import Pace

is_wrapped, is_traced = torch._C._functorch.is_functorch_wrapped_tensor, torch._C._get_tracing_state

NO_STEP = (
    "Cockpit: the parameters move, but step() of {name}, the optimizer given to track(...), is not called, nor that of an "
    "optimizer that it holds: no step is recorded. Give track the optimizer whose step() the loop calls, or put what moves "
    "the parameters into `with run.stepping():`."
)
NEVER = (
    "Cockpit: {losses} losses were differentiated, and step() of {name}, the optimizer given to track(...), was never called: "
    "nothing is on record. Call it after loss.backward()."
)
MANY = 32
"""Backward passes before the first step that are no accumulation of micro-batches any more."""


class Listener:
    """``on_spike`` is told of a loss that is out of line, ``on_unseen`` of parameters that move without a step.

    ``by_module``: the loss is a module with a hook; else all that is known about it passes through
    ``torch.autograd.backward``.
    """

    def __init__(
        self,
        engine: Engine,
        pace: Pace,
        signals: Collector,
        faults: Faults,
        optimizers: Iterable[torch.optim.Optimizer],
        *,
        by_module: bool,
        looks_for_steps: bool,
        on_spike: Callable[[str], None],
        on_unseen: Callable[[str], None],
    ):
        self.engine: Engine | None = engine
        self.pace, self.signals, self.faults, self.by_module = pace, signals, faults, by_module
        self.looks_for_steps, self.on_spike, self.on_unseen = looks_for_steps, on_spike, on_unseen
        self.optimizers = list(optimizers)
        self.unseen = Unseen(parameters_of(self.optimizers))
        self.scaler: Any = None
        self.arriving = Arriving()
        self.losses_seen = self.backward_passes = 0
        self.stepped = False

    def forget(self) -> None:
        """A new step begins."""
        self.losses_seen = self.backward_passes = 0
        self.unseen.place = None  # a step moves the parameters
        self.stepped = True

    def count_in_vain(self) -> int:
        """Losses so far, if they are many, no step was ever called, and nothing else moves the parameters."""
        moved = self.stepped or "no step" in self.faults.warned or not self.looks_for_steps
        return 0 if moved or self.losses_seen < MANY else self.losses_seen

    def close(self) -> int:
        """How many losses there were in vain."""
        if count := self.count_in_vain():
            with self.faults.guard("looking for steps"):
                self.on_unseen(NEVER.replace("{losses}", str(count)))
        self.engine, self.unseen, self.optimizers, self.arriving = None, Unseen(()), [], Arriving()
        return count

    # ---- a loss module --------------------------------------------------------------------------------------------

    def on_loss(self, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        """Every forward of the loss comes by here. A loss on another device than the CPU is looked at when it
        arrives."""
        engine = self.engine
        if engine is None:
            return
        if not engine.step.plan.active and engine.cover.model.training and not engine.muted:
            if type(output) is not Tensor or not output.requires_grad or is_wrapped(output) or is_traced():
                return
            self.losses_seen += 1
            if self.losses_seen & 7 == 0:
                self._look_for_steps()
            if output.dim():
                return
            self.signals.glimpse_call(args, kwargs)
            reason = self.pace.spikes.sees(output.item()) if output.is_cpu else self._see_arriving(output)
            if reason is None or self.pace.trigger:
                return
            self.on_spike(reason)
        elif is_imagined():
            return
        if engine.step.plan.record and isinstance(output, Tensor) and output.requires_grad:
            self.signals.see_loss(args, kwargs, output)
        engine.on_loss(module, args, kwargs, output)

    # ---- what is differentiated -----------------------------------------------------------------------------------

    def awaits(self, tensors: Any) -> bool:
        """Every backward pass of this process comes by here (see ``roots``)."""
        engine = self.engine
        if engine is None or engine.step.plan.active:
            return engine is not None
        if not self.by_module and isinstance(tensors, Tensor) and not engine.muted:
            try:
                self._glance(engine, tensors)
            except Exception as error:
                with self.faults.guard("loss"):
                    raise error
        return engine.step.plan.active

    def _glance(self, engine: Engine, loss: Tensor) -> None:
        """Is a loss without a module out of line? With several runs: does it belong to this one?"""
        if loss.dim() or not loss.requires_grad or not engine.cover.model.training:
            return
        if len(ALIVE) > 1 and not survey(Root((loss,), (None,)), engine.cover.names, (), False).is_mine:
            return
        self.losses_seen += 1
        if not loss.is_cpu:
            self._judge_arriving(loss.detach() if self.scaler is None else unscaled(loss.detach(), self.scaler))
            return
        self.signals.glimpse_root(loss)
        value = loss.item()
        self._judge(value if self.scaler is None else value / self.loss_scale())

    def before_backward(self, root: Root) -> Any:
        engine = self.engine
        if engine is not None:
            with self.faults.guard("what is differentiated"):
                prepared = engine.before_root(root)
                if prepared is not None and engine.step.plan.record:  # else it belongs to another network
                    self.signals.see_root(root.tensors)
                return prepared
        return None

    def deaf(self) -> AbstractContextManager[None]:
        """Without reading the random generators, which takes longer than all else: whoever works keeps them."""
        return nullcontext() if self.engine is None else self.engine.quiet.mute(draws=False)

    def after_backward(self, token: Any, failed: bool) -> None:
        if self.engine is not None:
            with self.faults.guard("what is differentiated"):
                self.engine.after_root(token, failed)

    def notice_loss(self, value: Tensor, factor: Tensor) -> None:
        """The backward passes of tracked steps come by here, and those of a model that trains in eval mode."""
        self.backward_passes += 1
        self.losses_seen += 1
        if self.losses_seen & 7 == 0:
            self._look_for_steps()
        if value.dim():
            return
        if value.is_cpu:
            self._judge(float(value))
        else:
            self._judge_arriving(value)

    def _judge(self, loss: float) -> None:
        reason = self.pace.spikes.sees(loss)
        if reason is not None and not self.pace.trigger:
            self.on_spike(reason)

    def _judge_arriving(self, loss: Tensor) -> None:
        reason = self._see_arriving(loss)
        if reason is not None and not self.pace.trigger:
            self.on_spike(reason)

    def _see_arriving(self, loss: Tensor) -> str | None:
        """Why a loss that was computed some losses ago is out of line. This one is looked at later: nobody waits for it."""
        first = None
        for value, ago in self.arriving.take():
            reason = self.pace.spikes.sees(value)
            if reason is not None:
                first = first or f"{reason} ({say_ago(ago + 1)})"
        self.arriving.send(loss)
        return first

    def _look_for_steps(self) -> None:
        """Many losses, and no step of the optimizer: do the parameters move anyway?"""
        if "no step" not in self.faults.warned and self.looks_for_steps:
            with self.faults.guard("looking for steps"):
                if not is_stepping(self.optimizers) and self.unseen.looks(self.losses_seen):
                    self.on_unseen(NO_STEP)

    # ---- a GradScaler ---------------------------------------------------------------------------------------------

    def find_scaler(self) -> None:
        """A GradScaler calls ``optimizer.step`` itself: it is looked for once, and its factor is known from then on."""
        if self.scaler is None:
            self.scaler = find_scaler()
            if self.scaler is not None and self.engine is not None and self.engine.step.loss_scale == 1:
                self.engine.unscale(float(self.scaler.get_scale()))

    def loss_scale(self) -> float:
        return 1.0 if self.scaler is None else float(self.scaler.get_scale())


def say_ago(losses: int) -> str:
    return "one loss ago" if losses == 1 else f"{losses} losses ago"

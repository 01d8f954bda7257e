"""The hooks of a run: two light ones as long as it lives, and more while a step is tracked."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from cockpit_core.engine.hooks import Handles, Hook
from cockpit_core.engine.loss.roots import WATCH
from cockpit_core.engine.scripting import HiddenFromScript
from cockpit_core.tracking.idle_cost import IdleCost
from cockpit_core.tracking.listening import Listener


class Attachments:
    """On the loss and behind the optimizers for the whole run; before their steps where something is measured."""

    def __init__(
        self,
        loss_fn: Any,
        listener: Listener,
        optimizers: Iterable[torch.optim.Optimizer],
        before_step: Callable[..., None],
        after_step: Hook,
        note_idle: Callable[[float], None],
    ):
        """``note_idle`` is told what the light hooks take, where that is looked at."""
        self.loss_fn, self.listener, self.optimizers = loss_fn, listener, list(optimizers)
        self.before_step, self.after_step = before_step, after_step
        self.handles, self.step_handles = Handles(), Handles()
        self.idle_cost, self.note_idle = IdleCost([], note_idle), note_idle

    def attach(self) -> None:
        """Apart from the constructor: what fails half-way can be removed."""
        self.handles.add(HiddenFromScript())
        if isinstance(self.loss_fn, nn.Module):
            on_loss = Hook(self.listener, "on_loss")
            self.handles.add(self.loss_fn.register_forward_hook(on_loss, with_kwargs=True))
            if len(self.optimizers) == 1:
                self.idle_cost = IdleCost([on_loss, self.after_step], self.note_idle)
        else:
            WATCH.add(self.listener)
        for optimizer in self.optimizers:
            self.handles.add(optimizer.register_step_post_hook(self.after_step))

    def follow(self, is_active: bool, always_before: bool) -> None:
        """The hook before the optimizer's step, and with a loss module the function around backward, are there only where
        something is measured: idle steps are cheaper. ``always_before``: rounds of several optimizers are counted there."""
        if self.listener.by_module:
            (WATCH.add if is_active else WATCH.discard)(self.listener)
        if not is_active and not always_before:
            self.step_handles.remove()
        elif not self.step_handles:
            for optimizer in self.optimizers:
                self.step_handles.add(optimizer.register_step_pre_hook(self.before_step))

    def remove(self) -> None:
        WATCH.discard(self.listener)
        self.handles.remove()
        self.step_handles.remove()
        self.loss_fn, self.optimizers = None, []

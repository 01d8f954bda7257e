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
        note_idle: Callable[[float, float], None],
    ):
        """``note_idle`` is told how long the light hooks take, where that is measured."""
        self.loss_fn, self.listener, self.optimizers = loss_fn, listener, list(optimizers)
        self.before_step, self.after_step = before_step, after_step
        self.handles, self.step_handles = Handles(), Handles()
        self.idle_cost, self.note_idle = IdleCost([], note_idle), note_idle
        self.on_loss, self.loss_handles = Hook(listener, "on_loss"), Handles()
        self.place = -1  # of that hook, among those of the loss
        self.listens = True  # is every loss heard of? Else a step may have begun, and nobody knows

    def attach(self) -> None:
        """Separate from the constructor, so that hooks can be removed if it fails half-way."""
        self.handles.add(HiddenFromScript())
        if isinstance(self.loss_fn, nn.Module):
            handle = self.loss_fn.register_forward_hook(self.on_loss, with_kwargs=True)
            self.place = handle.id
            self.loss_handles.add(handle)
            if len(self.optimizers) == 1:
                self.idle_cost = IdleCost([self.on_loss, self.after_step], self.note_idle)
        else:
            WATCH.add(self.listener)
        for optimizer in self.optimizers:
            self.handles.add(optimizer.register_step_post_hook(self.after_step))

    def listen(self, wanted: bool) -> None:
        """To a loss module: on an idle step of a tiny network, its hook alone may take what a budget allows. It stays where
        the module has others, because they are called in order. Its place is kept: to register it anew, every few steps,
        would take as long as listening."""
        if wanted is self.listens or not isinstance(self.loss_fn, nn.Module):
            return
        hooks, takes_keywords = self.loss_fn._forward_hooks, self.loss_fn._forward_hooks_with_kwargs
        if wanted:
            hooks[self.place], takes_keywords[self.place] = self.on_loss, True
        elif len(hooks) > 1:
            return
        else:
            hooks.pop(self.place, None)
            takes_keywords.pop(self.place, None)
        self.listens = wanted

    def rest(self) -> None:
        """Idle steps follow: what does the next one take?"""
        self.listen(True)
        self.idle_cost.sample()

    def follow(self, is_active: bool, always_before: bool) -> None:
        """The hook before the optimizer's step, and with a loss module the function around backward, are there only where
        something is measured: idle steps are cheaper. ``always_before``: rounds of several optimizers are counted there."""
        if is_active:
            self.listen(True)
            self.idle_cost.stop()
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
        self.loss_handles.remove()
        self.step_handles.remove()
        self.loss_fn, self.optimizers = None, []

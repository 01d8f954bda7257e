"""Passes of our own through the user's network: no hook sees them, and they leave no trace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from cockpit_core.layers import random_state
from cockpit_core.layers.hook_watch import HookWatch
from cockpit_core.layers.module_state import ModuleState
from cockpit_core.layers.outside import runs_own_backward


class Quiet:
    """While ``muted``, hooks of ours do not listen; hooks of the user are not called."""

    def __init__(self, model: nn.Module, loss_fn: Any):
        self.model, self.loss_fn = model, loss_fn
        self.watch = HookWatch()
        self.muted = False
        self.runs_own_backward = runs_own_backward(model)
        self.packed = False
        """The graph hands out saved tensors only once, or from elsewhere: checkpointing, offloading."""

    def begin(self) -> None:
        self.packed = False

    @contextmanager
    def mute(self, *, draws: bool = True) -> Iterator[None]:
        """Our own backward passes and forwards fire our own hooks: they must not listen. ``draws``: may a pass of this run draw
        random numbers? Not while another run works, which puts back itself what it draws."""
        if self.muted:
            yield
            return
        self.muted = True
        try:
            with self.undisturbed(draws=draws):
                yield
        finally:
            self.muted = False

    @contextmanager
    def undisturbed(self, *, draws: bool = True) -> Iterator[None]:
        """A pass of ours calls no hook of the user, and draws no random number that the user would have drawn.

        Where a backward pass runs code of the user (checkpointing, an ``autograd.Function``), it runs on copies of all
        that this code keeps.
        """
        with ExitStack() as stack:
            stack.enter_context(self.watch.silenced(self.model.parameters()))
            if draws:
                stack.enter_context(random_state.kept())
            if self.packed or self.runs_own_backward:
                stack.enter_context(self._state().installed(hooks=True))
            yield

    @contextmanager
    def running(self, classes: set[type]) -> Iterator[None]:
        """Code of these classes of the user runs once more, on copies of all that it can reach."""
        muted, self.muted = self.muted, True
        try:
            with random_state.kept(), self._state(classes).installed():
                yield
        finally:
            self.muted = muted

    def _state(self, classes: Iterable[type] = ()) -> ModuleState:
        loss = [self.loss_fn] if isinstance(self.loss_fn, nn.Module) else []
        return ModuleState(self.model, *loss, classes=classes)


_top_hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)


def has_saved_tensor_hooks() -> bool:
    return _top_hooks is not None and _top_hooks(False) is not None

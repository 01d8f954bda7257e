"""Hooks that hold the run weakly and turn inert in copies, so that a tracked model can be copied, saved and dropped."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.compiler import is_compiling


def _inert(*args: Any, **kwargs: Any) -> None:
    """What a copied or unpickled hook does: nothing. A copy of a tracked model is not tracked."""


def is_imagined() -> bool:
    """Code runs on stand-ins for tensors: inside ``torch.func`` transforms, ``torch.jit.trace``, fake tensors. No training."""
    return (
        torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._get_tracing_state() is not None
        or torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None
    )


class Hook:
    """``owner.method(*args)`` while the owner lives. ``copy.deepcopy`` and ``pickle`` give an inert function.

    ``keeps`` holds the owner: a run that nobody gave a name lives as long as its optimizer.
    """

    __slots__ = ("function", "kept", "owner")

    def __init__(self, owner: Any, method: str, *, keeps: bool = False):
        self.owner, self.kept = weakref.ref(owner), owner if keeps else None
        self.function = getattr(type(owner), method)  # looked up once: some hooks are called at every step

    def __call__(self, *args: Any) -> Any:
        if is_compiling():  # first: the compiler traces this line, and no further
            return None
        owner = self.owner()
        return None if owner is None else self.function(owner, *args)

    def __deepcopy__(self, memo: dict) -> Any:
        return _inert

    def __reduce__(self) -> Any:
        return _give_inert, ()


class LayerHook(Hook):
    """For tracked steps: not called where code runs on stand-ins for tensors. (Hooks of idle steps are so cheap that
    asking would cost more.)"""

    __slots__ = ()

    def __call__(self, *args: Any) -> Any:
        if is_compiling() or is_imagined():
            return None
        owner = self.owner()
        return None if owner is None else self.function(owner, *args)


def _give_inert() -> Any:
    return _inert


class Handles:
    """Registered hooks, removed together."""

    def __init__(self) -> None:
        self._handles: list[Any] = []

    def add(self, handle: Any) -> None:
        self._handles.append(handle)

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def __bool__(self) -> bool:
        return bool(self._handles)

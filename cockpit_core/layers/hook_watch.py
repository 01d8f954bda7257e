"""Hooks that the user has put on tensors and nodes of the graph: passes of ours must not call them.

Torch keeps such hooks in dictionaries that nothing leads to once the tensor's name is gone. But each registration makes a
``RemovableHandle`` for its dictionary: while something is watched, those are noted. A pass of ours empties the
dictionaries for as long as it runs, and our own entries stay.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn.modules import module as torch_modules
from torch.utils.hooks import RemovableHandle

_register = RemovableHandle.__init__
_watches: list[HookWatch] = []


def _note(self: Any, hooks_dict: Any, **more: Any) -> None:
    _register(self, hooks_dict, **more)
    for watch in _watches:
        watch.dictionaries[id(hooks_dict)] = weakref.ref(hooks_dict)


class HookWatch:
    """Notes dictionaries of hooks from ``start`` on until ``remove``."""

    def __init__(self) -> None:
        self.dictionaries: dict[int, weakref.ref] = {}

    def start(self) -> HookWatch:
        self.dictionaries.clear()
        if self not in _watches:
            _watches.append(self)
            RemovableHandle.__init__ = _note  # type: ignore[method-assign]
        return self

    def remove(self) -> None:
        self.dictionaries.clear()
        if self in _watches:
            _watches.remove(self)
        if not _watches:
            RemovableHandle.__init__ = _register  # type: ignore[method-assign]

    def alive(self) -> list[dict]:
        return [hooks for reference in self.dictionaries.values() if (hooks := reference()) is not None]

    @contextmanager
    def silenced(self, leaves: Iterable[Tensor]) -> Iterator[None]:
        """No hook of the user is called, on the noted tensors and on these leaves."""
        own = [leaf._backward_hooks for leaf in leaves if leaf._backward_hooks]
        before = [(hooks, dict(hooks)) for hooks in (*self.alive(), *own) if not all(map(is_ours, hooks.values()))]
        try:
            for hooks, _ in before:
                drop_foreign(hooks)
            yield
        finally:
            for hooks, content in before:
                hooks.clear()
                hooks.update(content)


@contextmanager
def unhooked() -> Iterator[None]:
    """Hooks that code registers on tensors inside are taken off again at the end."""
    watch = HookWatch().start()
    try:
        yield
    finally:
        dictionaries = watch.alive()
        watch.remove()
        for hooks in dictionaries:
            drop_foreign(hooks)


def drop_foreign(hooks: dict) -> None:
    for key in [key for key, hook in hooks.items() if not is_ours(hook)]:
        del hooks[key]


def has_foreign_hooks(parameter: Tensor) -> bool:
    """May a hook of the user change the gradient of this parameter?"""
    kept = (parameter._backward_hooks, getattr(parameter, "_post_accumulate_grad_hooks", None))
    return any(not is_ours(hook) for hooks in kept if hooks for hook in hooks.values())


def has_foreign_forward_hooks(module: nn.Module) -> bool:
    """May a hook of the user return another output than the module's?"""
    kept = (module._forward_hooks, torch_modules._global_forward_hooks)
    return any(not is_ours(hook) for hooks in kept for hook in hooks.values())


def is_ours(hook: Any) -> bool:
    while isinstance(hook, partial):
        hook = hook.func
    return str(getattr(hook, "__module__", None) or type(hook).__module__).startswith("cockpit_core.")

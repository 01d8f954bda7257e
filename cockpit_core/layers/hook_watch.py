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

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_modules
from torch.utils.hooks import RemovableHandle

ALTERED = "a hook of yours on an activation changes gradients behind this layer: it may let samples meet"
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
        self.altered = ""
        """Why layers that the backward pass has not reached yet are marked: a hook of the user changed what passes by."""
        self._heard: list[tuple[weakref.ref, Any, Heard]] = []

    def start(self) -> HookWatch:
        self.dictionaries.clear()
        self._heard.clear()
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

    def listen(self, leaves: Iterable[Tensor]) -> None:
        """A backward pass of the user begins: will a hook on an activation change what passes by?

        Hooks on leaves are looked at elsewhere. Hooks of ours come last from here on, so that they see what goes on.
        """
        self.end_listening()
        with_foreign = [hooks for hooks in self.alive() if not all(map(is_ours, hooks.values()))]
        own = {id(leaf._backward_hooks) for leaf in leaves} if with_foreign else set()
        for hooks in with_foreign:
            if id(hooks) not in own:
                for key, hook in list(hooks.items()):
                    if is_ours(hook):
                        hooks[key] = hooks.pop(key)
                    else:
                        hooks[key] = heard = Heard(hook, self)
                        self._heard.append((weakref.ref(hooks), key, heard))

    def end_listening(self) -> None:
        """The user's hooks are what they were."""
        for reference, key, heard in self._heard:
            hooks = reference()
            if hooks is not None and key in hooks:
                hooks[key] = without(hooks[key], heard)
        self._heard.clear()
        self.altered = ""

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


class Heard:
    """A hook of the user that does what it did before, and is remembered if it changes the gradient."""

    __slots__ = ("hook", "watch")

    def __init__(self, hook: Any, watch: HookWatch):
        self.hook, self.watch = hook, watch

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = tensors_in(args[0]) if args else []  # what a tensor or a node gets first is what a hook may replace
        versions = [tensor._version for tensor in given]
        result = self.hook(*args, **kwargs)
        written = versions != [tensor._version for tensor in given]
        if written or (result is not None and not are_same(given, tensors_in(result))):
            self.watch.altered = ALTERED
        return result


def without(hook: Any, heard: Heard) -> Any:
    """Two runs may listen to the same hook, one around the other."""
    if hook is heard:
        return heard.hook
    if isinstance(hook, Heard):
        hook.hook = without(hook.hook, heard)
    return hook


def tensors_in(value: Any) -> list[Tensor]:
    """A hook on a tensor gets a tensor, one on a node gets a tuple; entries may be None."""
    values = value if isinstance(value, (tuple, list)) else [value]
    return [tensor for tensor in values if isinstance(tensor, Tensor)]


def are_same(given: list[Tensor], returned: list[Tensor]) -> bool:
    """Nothing is compared on a device: that would wait for it."""
    if len(given) != len(returned):
        return False
    pairs = list(zip(given, returned, strict=True))
    return all(one is other or (one.is_cpu and other.is_cpu and torch.equal(one, other)) for one, other in pairs)


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
    before, after = parameter._backward_hooks, getattr(parameter, "_post_accumulate_grad_hooks", None)
    if before and not all(map(is_ours, before.values())):
        return True
    return after is not None and not all(map(is_ours, after.values()))


def has_foreign_forward_hooks(module: nn.Module) -> bool:
    """May a hook of the user return another output than the module's?"""
    kept = (module._forward_hooks, torch_modules._global_forward_hooks)
    return any(not is_ours(hook) for hooks in kept for hook in hooks.values())


def is_ours(hook: Any) -> bool:
    if type(hook) in _own_kinds:
        return True
    while isinstance(hook, (partial, Heard)):
        hook = hook.hook if isinstance(hook, Heard) else hook.func
    ours = str(getattr(hook, "__module__", None) or type(hook).__module__).startswith("cockpit_core.")
    if ours and type(hook).__module__.startswith("cockpit_core."):
        _own_kinds.add(type(hook))
    return ours


_own_kinds: set[type] = set()
"""Classes of ours whose objects are hooks: a tracked step asks hundreds of times."""

"""All that a module keeps, as it was before one of its calls, so that the call can be repeated without a trace.

A call is repeated on copies. Buffers, attributes of every kind (a kept output, a counter, a codebook, a generator of random
numbers), globals, closures and class attributes that the user's code touches are replaced by copies of what they were
before the call, and put back, the same objects, afterwards. The originals are never written into: the user's own graph
may need them. The user's hooks on modules do not run, unless the result is wrong without them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_modules

from cockpit_core.layers.copying import PLAIN, CannotCopy, Copier
from cockpit_core.layers.hook_watch import is_ours, unhooked
from cockpit_core.layers.outside import MISSING, Place, find_places, functions_in, is_library
from cockpit_core.layers.random_state import restored, take

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
REGISTERED = ("_parameters", "_modules", "_buffers")
INTERNAL = frozenset(
    (
        *HOOKS, *REGISTERED, "_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_is_full_backward_hook",
        "_forward_pre_hooks_with_kwargs", "_non_persistent_buffers_set", "_state_dict_hooks", "_state_dict_pre_hooks",
        "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks", "_compiled_call_impl", "_trainer", "_fabric",
    )
)  # fmt: skip
GLOBAL_HOOKS = (
    "_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks", "_global_backward_pre_hooks",
)  # fmt: skip


class NotRepeatable(RuntimeError):
    """A call cannot be repeated, or did not come out the same; the message says why."""


class ModuleState:
    """Taken before a call. ``installed`` brings it back for a while, any number of times."""

    def __init__(self, *roots: nn.Module, classes: Iterable[type] = ()):
        """``classes``: others whose code may run."""
        self.reason = ""
        """Why the call cannot be repeated; "" if it can."""
        modules = dict.fromkeys(m for root in roots for m in root.modules())
        self.modules = [m for m in modules if not isinstance(m, torch.jit.ScriptModule)]
        self.attributes: dict[nn.Module, dict[str, Any]] = {}
        self.buffers: dict[nn.Module, dict[str, Any]] = {}
        self.places: list[tuple[Place, Any]] = []
        self.has_hooks = False
        """Hooks of the user on one of the modules."""
        self.is_of_torch = False
        """Nothing but code of libraries runs in the call, and draws from torch's generators alone."""
        try:
            for module in modules:
                refuse_scripted(module)
            self._take(Copier(), set(classes))
        except CannotCopy as error:
            self.reason = f"it cannot be run again without a trace: {error}"
        except Exception as error:  # whatever a user's object does when it is copied: training goes on
            self.reason = f"it cannot be run again without a trace: {type(error).__name__} while copying what it keeps"

    def _take(self, copier: Copier, classes: set[type]) -> None:
        functions: list[Any] = []
        for module in self.modules:
            self.attributes[module] = copy_attributes(module, copier)
            if module._buffers:
                self.buffers[module] = {n: copier.copy(b, n) for n, b in module._buffers.items()}
            if not is_library(type(module).__module__):
                classes.add(type(module))
            hooks = list(user_hooks(module))
            self.has_hooks = self.has_hooks or bool(hooks)
            functions += [hook for hook in hooks if functions_in(hook)]
            functions += [v for v in vars(module).values() if type(v) not in PLAIN and is_function(v)]
        if classes or functions:
            self._take_outside(classes, functions, copier)
        own = classes or functions or self.has_hooks or is_watched()
        self.is_of_torch = not own and all(map(runs_torch_alone, self.modules))

    def _take_outside(self, classes: set[type], functions: list[Any], copier: Copier) -> None:
        known, seen = set(self.modules), set()
        more: list[nn.Module] = []
        for place in find_places(classes, functions):
            value = place.read()
            if place.key in seen:
                continue
            seen.add(place.key)
            if isinstance(value, nn.Module):
                more += [m for m in value.modules() if m not in known and not isinstance(m, torch.jit.ScriptModule)]
                known.update(more)
            else:
                try:
                    self.places.append((place, copier.copy(value, place.name)))
                except CannotCopy:
                    continue  # code mentions many things that it does not change
        for module in more:
            self.modules.append(module)
            self.attributes[module] = copy_attributes(module, copier)
            self.buffers[module] = {n: copier.copy(b, n) for n, b in module._buffers.items()}

    @contextmanager
    def installed(self, *, hooks: bool = False) -> Iterator[None]:
        """As before the call; afterwards everything is again what it is now."""
        if self.reason:
            raise NotRepeatable(self.reason)
        undo: list[Callable[[], None]] = []
        copier = Copier()
        try:
            for module in self.modules:
                self._install(module, copier, hooks, undo)
            for place, value in self.places:
                undo.append(partial(place.write, place.read()))
                place.write(value if value is MISSING else copier.copy(value, place.name))
            if not hooks:
                for name in GLOBAL_HOOKS:
                    put(getattr(torch_modules, name), {}, undo)
            with unhooked():
                yield
        finally:
            for step in reversed(undo):
                step()

    def _install(self, module: nn.Module, copier: Copier, hooks: bool, undo: list[Callable[[], None]]) -> None:
        held, kept = vars(module), self.attributes[module]
        for name in REGISTERED:
            put(held[name], dict(held[name]), undo)
        if module in self.buffers:
            put(module._buffers, {n: copier.copy(b, n) for n, b in self.buffers[module].items()}, undo)
        internal = {name: value for name, value in held.items() if name in INTERNAL}
        put(held, internal | {name: copier.copy(value, name) for name, value in kept.items()}, undo)
        if not hooks:
            for name in HOOKS:
                if held[name]:
                    put(held[name], {k: hook for k, hook in held[name].items() if belongs(hook)}, undo)


def put(holder: dict, values: dict, undo: list[Callable[[], None]]) -> None:
    """The same dictionary with other content, and how to take it back."""
    before = dict(holder)
    undo.append(lambda: fill(holder, before))
    fill(holder, values)


def fill(holder: dict, values: dict) -> None:
    if len(holder) == len(values) and all(holder.get(key, MISSING) is value for key, value in values.items()):
        return
    holder.clear()
    holder.update(values)


def copy_attributes(module: nn.Module, copier: Copier) -> dict[str, Any]:
    name = type(module).__name__
    return {
        key: value if type(value) in PLAIN else copier.copy(value, f"{key} of {name}")
        for key, value in vars(module).items()
        if key not in INTERNAL
    }


def runs_torch_alone(module: nn.Module) -> bool:
    """Is it a module of torch itself, and is its forward torch's own?"""
    kind = type(module)
    owners = kind.__module__, getattr(kind.forward, "__module__", None) or ""
    return all(owner.startswith("torch.nn.") for owner in owners) and "forward" not in vars(module)


def is_watched() -> bool:
    """Does code of the user run wherever torch runs: hooks on all modules, modes that see each function?"""
    modes = torch._C._len_torch_function_stack() + torch._C._len_torch_dispatch_stack()
    return modes > 0 or any(
        not belongs(hook) for name in GLOBAL_HOOKS for hook in getattr(torch_modules, name).values()
    )


def user_hooks(module: nn.Module) -> Iterator[Any]:
    for name in HOOKS:
        yield from (hook for hook in (getattr(module, name) or {}).values() if not belongs(hook))


def belongs(hook: Any) -> bool:
    """Ours, and those of torch that are part of the computation: old ``weight_norm``, ``spectral_norm``, pruning."""
    return is_ours(hook) or str(getattr(hook, "__module__", None) or type(hook).__module__).startswith("torch.nn.utils")


def is_function(value: Any) -> bool:
    return callable(value) and not isinstance(value, (type, nn.Module, torch.Tensor)) and bool(functions_in(value))


def refuse_scripted(module: nn.Module) -> None:
    if isinstance(module, torch.jit.ScriptModule) and next(module.buffers(), None) is not None:
        raise CannotCopy(f"{type(module).__name__} was scripted, and keeps buffers where they cannot be put back")


class LossAgain:
    """The forward of a module (a loss) as it was before the user's call, as often as needed, without a trace."""

    def __init__(self, module: nn.Module):
        stateless = all(is_library(type(m).__module__) and not any(user_hooks(m)) for m in module.modules())
        self.module = module
        self.state = None if stateless else ModuleState(module)
        self.random_state = None if stateless else take(())

    def forward(self, *args: Any, changed: dict[str, Any] | None = None, **kwargs: Any) -> Any:
        """``changed``: attributes that have another value meanwhile."""
        held = vars(self.module)
        if self.state is None and changed and all(name in held for name in changed):
            return self._forward_changed(held, changed, args, kwargs)
        undo: list[Callable[[], None]] = []
        with ExitStack() as stack:
            if self.state is not None:
                stack.enter_context(self.state.installed())
                stack.enter_context(restored(self.random_state))
            try:
                put(vars(self.module), vars(self.module) | (changed or {}), undo)
                return self.module.forward(*args, **kwargs)
            finally:
                undo[0]()

    def _forward_changed(self, held: dict[str, Any], changed: dict[str, Any], args: tuple, kwargs: dict) -> Any:
        """The state of one of torch's own modules, which keeps nothing: only these attributes have to be put back."""
        before = {name: held[name] for name in changed}
        try:
            held.update(changed)
            return self.module.forward(*args, **kwargs)
        finally:
            held.update(before)

"""Where the code of a user's module keeps state outside the module: globals, closures, attributes of its class.

``LOSSES.append(penalty)`` in a forward pass, a hook that counts in its closure, ``Layer.calls += 1``. Only the user's own
code is read, never that of libraries.
"""

from __future__ import annotations

import dis
import functools
import sys
import types
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.autograd import Function

from cockpit_core.layers.copying import PLAIN, UNCHANGING, is_installed, package_of

MISSING = object()


@dataclass(frozen=True)
class Place:
    """One name that code can bind: in a Python module, in a class, or a cell of a closure."""

    holder: Any
    name: str

    def read(self) -> Any:
        if isinstance(self.holder, types.CellType):
            try:
                return self.holder.cell_contents
            except ValueError:  # not bound yet
                return MISSING
        if isinstance(self.holder, dict):
            return self.holder.get(self.name, MISSING)
        return vars(self.holder).get(self.name, MISSING)

    def write(self, value: Any) -> None:
        if value is self.read():
            return
        if isinstance(self.holder, types.CellType):
            if value is MISSING:
                del self.holder.cell_contents
            else:
                self.holder.cell_contents = value
        elif isinstance(self.holder, dict):
            if value is MISSING:
                del self.holder[self.name]
            else:
                self.holder[self.name] = value
        elif value is MISSING:
            type.__delattr__(self.holder, self.name)
        else:
            type.__setattr__(self.holder, self.name, value)

    @property
    def key(self) -> tuple[int, str]:
        return id(self.holder), self.name


def is_library(name: str) -> bool:
    top = name.partition(".")[0]
    return is_installed(top) or top in sys.stdlib_module_names


def can_change(value: Any) -> bool:
    """Could code change this without binding the name anew?"""
    if value is MISSING or type(value) in PLAIN or isinstance(value, UNCHANGING):
        return False
    return isinstance(value, (dict, list, set)) or not is_installed(package_of(value)) or is_numeric(value)


def is_numeric(value: Any) -> bool:
    return type(value).__name__ in ("Tensor", "ndarray", "Generator", "RandomState")


_classes: weakref.WeakKeyDictionary[type, tuple[types.FunctionType, ...]] = weakref.WeakKeyDictionary()


def functions_of(owner: type) -> tuple[types.FunctionType, ...]:
    """All functions that a class and its bases define, libraries aside."""
    if owner not in _classes:
        functions = []
        for base in owner.__mro__:
            if not is_library(base.__module__):
                functions += [f for f in map(unwrap, vars(base).values()) if isinstance(f, types.FunctionType)]
        _classes[owner] = tuple(functions)
    return _classes[owner]


def unwrap(value: Any) -> Any:
    if isinstance(value, (staticmethod, classmethod)):
        return value.__func__
    if isinstance(value, property):
        return value.fget
    return getattr(value, "__wrapped__", value)


@functools.lru_cache(maxsize=4096)
def names_in(code: types.CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """Names that a function mentions, and those that it binds globally; of the functions inside it too."""
    mentioned, bound = set(code.co_names), set()
    for step in dis.get_instructions(code):
        if step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            bound.add(str(step.argval))
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            more, also_bound = names_in(inner)
            mentioned, bound = mentioned | more, bound | also_bound
    return frozenset(mentioned), frozenset(bound)


def find_places(classes: Iterable[type], functions: Iterable[Any]) -> Iterator[Place]:
    """Everything that the methods of these classes and these functions may bind or change outside their object."""
    for owner in classes:
        yield from class_places(owner)
    for function in follow(classes, functions):
        for place in function_places(function):
            value = place.read()
            if is_autograd_function(value):
                yield from class_places(value)
            elif not isinstance(value, types.FunctionType):
                yield place


def follow(classes: Iterable[type], functions: Iterable[Any]) -> Iterator[types.FunctionType]:
    """The user's functions that can be reached from the methods of these classes and from these functions."""
    waiting = [f for owner in classes for f in functions_of(owner)]
    for function in functions:
        waiting += functions_in(function)
    seen: set[int] = set()
    while waiting:
        function = waiting.pop()
        if id(function) in seen or is_library(function.__module__ or ""):
            continue
        seen.add(id(function))
        yield function
        for place in function_places(function):
            value = place.read()
            if isinstance(value, types.FunctionType):
                waiting.append(value)
            elif is_autograd_function(value):
                waiting += functions_of(value)


def functions_in(value: Any) -> list[types.FunctionType]:
    """The plain functions behind something that can be called."""
    if isinstance(value, types.FunctionType):
        return [value]
    if isinstance(value, types.MethodType):
        return functions_in(value.__func__)
    if isinstance(value, functools.partial):
        return functions_in(value.func)
    inner = getattr(value, "__wrapped__", None)
    if inner is not None and inner is not value:
        return functions_in(inner)
    return [] if isinstance(value, type) else list(functions_of(type(value)))


def class_places(owner: type) -> Iterator[Place]:
    for base in owner.__mro__:
        if not is_library(base.__module__):
            for name, value in vars(base).items():
                counts = isinstance(value, (int, float)) and not name.startswith("__")
                if counts or (not name.startswith("__") and can_change(value) and not is_descriptor(value)):
                    yield Place(base, name)


def is_descriptor(value: Any) -> bool:
    return hasattr(type(value), "__get__")


def function_places(function: types.FunctionType) -> Iterator[Place]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield Place(cell, name)
    mentioned, bound = names_in(function.__code__)
    known = function.__globals__
    for name in mentioned:
        value = known.get(name, MISSING)
        followed = isinstance(value, (types.FunctionType, nn.Module)) or is_autograd_function(value)
        if name in bound or can_change(value) or followed:
            yield Place(known, name)
        elif isinstance(value, types.ModuleType) and not is_library(value.__name__):
            inner = vars(value)
            yield from (Place(inner, key) for key in mentioned if key in inner and can_change(inner[key]))


def is_autograd_function(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Function) and not is_library(value.__module__)


def runs_own_backward(model: nn.Module) -> bool:
    """Does the user's code use an ``autograd.Function`` of its own? Each pass of ours runs its backward."""
    functions = follow({type(module) for module in model.modules()}, ())
    return any(is_autograd_function(place.read()) for function in functions for place in function_places(function))

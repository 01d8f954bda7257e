"""Copies of what a module keeps between its calls, so that its code can run once more on them.

Like ``copy.deepcopy``, with three differences: modules, parameters, functions and the objects of frameworks stay
themselves; a tensor that belongs to a graph is copied without it; what cannot be copied is named, not guessed.
"""

from __future__ import annotations

import copy
import enum
import functools
import logging
import random
import re
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

MOST = 50_000
"""At most this many objects are looked at; a module that keeps more is not run again."""

FRAMEWORKS = frozenset(
    "torch numpy transformers lightning lightning_fabric pytorch_lightning accelerate tensorboard tensorboardX wandb "
    "mlflow cockpit_core cockpit_widget tb_plugin backpack logging threading _thread multiprocessing concurrent "
    "asyncio".split()
)
"""Their objects do not belong to the computation of a forward pass (a trainer, a logger, a configuration), or are ours."""

UNCHANGING: tuple[type, ...] = (
    int, float, complex, bool, str, bytes, type(None), type(Ellipsis), range, slice, type, enum.Enum, re.Pattern,
    types.ModuleType, types.BuiltinFunctionType, types.FunctionType, types.MappingProxyType, property,
    weakref.ReferenceType, logging.Logger, torch.dtype, torch.device, torch.Size, torch.layout,
    torch.memory_format, np.generic, np.dtype, nn.Module, nn.Parameter,
)  # fmt: skip

PLAIN = frozenset((int, float, bool, str, type(None), torch.dtype, torch.device, torch.Size))
"""The usual attributes of a module, known at a glance."""


class CannotCopy(Exception):
    """The message names the attribute."""


def package_of(value: Any) -> str:
    return str(getattr(type(value), "__module__", "") or "").partition(".")[0]


@functools.cache
def is_installed(package: str) -> bool:
    """Does it come from where packages are installed, rather than from the user's own files?"""
    if package in FRAMEWORKS:
        return True
    path = str(getattr(sys.modules.get(package), "__file__", None) or "").replace("\\", "/")
    return "/site-packages/" in path or "/dist-packages/" in path


class Copier:
    """One copy of each object, however many ways lead to it."""

    def __init__(self) -> None:
        self.known: dict[int, Any] = {}
        self.originals: list[Any] = []  # an address is only a name while its object lives

    def copy(self, value: Any, where: str) -> Any:
        if type(value) in PLAIN or isinstance(value, UNCHANGING):
            return value
        if id(value) in self.known:
            return self.known[id(value)]
        if len(self.originals) > MOST:  # a data set, a tree of everything
            raise CannotCopy(f"{where} leads to more than {MOST:,} objects")
        return self._copy_new(value, where)

    def _remember(self, value: Any, made: Any) -> Any:
        self.known[id(value)] = made
        self.originals.append(value)
        return made

    def _copy_new(self, value: Any, where: str) -> Any:
        if isinstance(value, Tensor):
            return self._remember(value, copy_tensor(value))
        if isinstance(value, torch.Generator):
            return self._remember(value, copy_generator(value))
        if isinstance(value, (np.ndarray, np.random.Generator, np.random.RandomState, random.Random)):
            return self._remember(value, shallow(value, where, copy.deepcopy))
        if isinstance(value, types.MethodType):
            owner = self.copy(value.__self__, where)
            return value if owner is value.__self__ else types.MethodType(value.__func__, owner)
        if isinstance(value, functools.partial):
            named = {key: self.copy(item, where) for key, item in value.keywords.items()}
            return functools.partial(self.copy(value.func, where), *(self.copy(a, where) for a in value.args), **named)
        if isinstance(value, tuple):
            return self._copy_tuple(value, where)
        if isinstance(value, (dict, list, set, frozenset, deque)):
            return self._copy_container(value, where)
        if is_installed(package_of(value)):
            return self._remember(value, value)
        return self._copy_object(value, where)

    def _copy_tuple(self, value: tuple, where: str) -> tuple:
        items = [self.copy(item, where) for item in value]
        if all(a is b for a, b in zip(items, value, strict=True)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)

    def _copy_container(self, value: Any, where: str) -> Any:
        made = self._remember(value, shallow(value, where))
        if isinstance(value, dict):
            for key, item in value.items():
                dict.__setitem__(made, key, self.copy(item, where))
        elif isinstance(value, (list, deque)):
            for k, item in enumerate(value):
                made[k] = self.copy(item, where)
        return made

    def _copy_object(self, value: Any, where: str) -> Any:
        """An object of the user: a cache, a running mean, a counter. Its attributes are copied in turn."""
        slots = [name for base in type(value).__mro__ for name in slots_of(base)]
        if not hasattr(value, "__dict__") and not slots:
            raise CannotCopy(f"{where} ({type(value).__name__}) keeps a state that cannot be copied")
        made = self._remember(value, shallow(value, where))
        if made is value:
            return value
        for name, item in vars(value).items() if hasattr(value, "__dict__") else ():
            made.__dict__[name] = self.copy(item, f"{where}.{name}")
        for name in slots:
            if hasattr(value, name):
                object.__setattr__(made, name, self.copy(getattr(value, name), f"{where}.{name}"))
        return made


def slots_of(base: type) -> list[str]:
    slots = base.__dict__.get("__slots__", ())
    names = [slots] if isinstance(slots, str) else list(slots)
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def shallow(value: Any, where: str, make: Callable[[Any], Any] = copy.copy) -> Any:
    try:
        return make(value)
    except Exception as error:
        raise CannotCopy(f"{where} ({type(value).__name__}) cannot be copied: {type(error).__name__}") from error


def copy_tensor(value: Tensor) -> Tensor:
    """Values only: what a tensor of an earlier pass depends on does not matter for the call that is run again."""
    if value.device.type == "meta" or torch._C._functorch.is_functorch_wrapped_tensor(value):
        return value
    with torch.no_grad():
        made = value.detach().clone()
    return made.requires_grad_() if value.is_leaf and value.requires_grad else made


def copy_generator(value: torch.Generator) -> torch.Generator:
    made = torch.Generator(device=value.device)
    made.set_state(value.get_state())
    return made

"""The state of the random generators: torch's, of the processor and of every accelerator that takes part, NumPy's, Python's.

A forward pass that is repeated must draw what the first one drew, and leave every generator as it was. The user's own
generators are part of what a module keeps (``module_state``).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

RandomState = dict[Any, Any]
"""By device of torch; "numpy" and "python" beside them."""

CPU = torch.device("cpu")


def take(tensors: Iterable[Tensor], *, of_torch: bool = False) -> RandomState:
    """The states of the processor, of the devices that these tensors are on, of NumPy and of Python. ``of_torch``: without
    the last two, which take a hundred times as long to read, where nobody can have drawn from them."""
    devices = {CPU, *(tensor.device for tensor in tensors if tensor.device.type != "meta")}
    return {key: _read(key) for key in (devices if of_torch else (*devices, "numpy", "python"))}


def is_same(first: RandomState, second: RandomState) -> bool:
    return first.keys() == second.keys() and all(_equal(state, second[key]) for key, state in first.items())


@contextmanager
def restored(state: RandomState | None) -> Iterator[None]:
    """Draw as from ``state``, and go on afterwards as if nothing had been drawn."""
    if state is None:
        yield
        return
    now = {key: _read(key) for key in state}
    try:
        for key, value in state.items():
            _write(key, value)
        yield
    finally:
        for key, value in now.items():
            _write(key, value)


@contextmanager
def kept() -> Iterator[None]:
    """Whatever is drawn inside, all generators go on as if nothing had been drawn."""
    now = take(())
    try:
        yield
    finally:
        for key, value in now.items():
            _write(key, value)


def _equal(first: Any, second: Any) -> bool:
    if isinstance(first, Tensor):
        return torch.equal(first, second)
    if isinstance(first, dict):  # NumPy's
        return first.keys() == second.keys() and all(_equal(value, second[key]) for key, value in first.items())
    return bool(np.all(first == second))


def _read(key: Any) -> Any:
    if key == "numpy":
        return np.random.get_state(legacy=False)
    if key == "python":
        return random.getstate()
    if key.type == "cpu":
        return torch.get_rng_state()
    module: Any = torch.get_device_module(key)
    return module.get_rng_state() if key.type == "mps" else module.get_rng_state(key)


def _write(key: Any, state: Any) -> None:
    if key == "numpy":
        np.random.set_state(state)
    elif key == "python":
        random.setstate(state)
    elif key.type == "cpu":
        torch.set_rng_state(state)
    else:
        module: Any = torch.get_device_module(key)
        module.set_rng_state(state) if key.type == "mps" else module.set_rng_state(state, key)

"""The state of torch's random generators, of the processor and of every accelerator that takes part.

A forward pass that is repeated must draw what the first one drew, and leave every generator as it found it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

RandomState = dict[torch.device, Tensor]
CPU = torch.device("cpu")


def take(tensors: Iterable[Tensor]) -> RandomState:
    """Of the processor, and of the devices that these tensors are on."""
    return {device: _read(device) for device in {CPU, *(tensor.device for tensor in tensors)} if device.type != "meta"}


def is_same(first: RandomState, second: RandomState) -> bool:
    return first.keys() == second.keys() and all(torch.equal(state, second[d]) for d, state in first.items())


@contextmanager
def restored(state: RandomState | None) -> Iterator[None]:
    """Draw as from ``state``, and go on afterwards as if nothing had been drawn."""
    if state is None:
        yield
        return
    now = {device: _read(device) for device in state}
    try:
        for device, value in state.items():
            _write(device, value)
        yield
    finally:
        for device, value in now.items():
            _write(device, value)


def _read(device: torch.device) -> Tensor:
    if device.type == "cpu":
        return torch.get_rng_state()
    module: Any = torch.get_device_module(device)
    return module.get_rng_state() if device.type == "mps" else module.get_rng_state(device)


def _write(device: torch.device, state: Tensor) -> None:
    if device.type == "cpu":
        torch.set_rng_state(state)
        return
    module: Any = torch.get_device_module(device)
    module.set_rng_state(state) if device.type == "mps" else module.set_rng_state(state, device)

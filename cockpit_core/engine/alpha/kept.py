"""What Alpha keeps from the backward pass until the step is known, within the memory budget.

``g_n . s`` needs the individual gradients of a step that the optimizer has not taken yet. For each parameter the smaller
of two exact things is kept: what its gradients are made of (inputs and output gradients of its layer), or, where they were
formed anyway and take less, the gradients. What does not fit the budget is not kept: once the step is known, the forward
and the backward pass are repeated at the parameters before the step, and each layer is projected as it comes by.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from cockpit_core.layers.contribution import Contribution, Rows
from cockpit_core.layers.fallback import ModuleGradients
from cockpit_core.layers.registry import Call


class Kept:
    """For one step: the contributions that wait for it, and the parameters that are left to the repetition."""

    def __init__(self, budget: int) -> None:
        self.budget, self.bytes = budget, 0
        self.parts: dict[str, list[Contribution]] = {}
        self.repeated: dict[str, int] = {}  # name -> bytes that were not kept
        self.storages: set[int] = set()

    def add(self, name: str, parts: list[Contribution], *, may_repeat: bool) -> None:
        storages = {pointer: size for part in parts for pointer, size in storages_of(part)}
        size = sum(size for pointer, size in storages.items() if pointer not in self.storages)
        if may_repeat and self.bytes + size > self.budget:
            self.repeated[name] = size
            return
        self.bytes += size
        self.storages |= set(storages)
        self.parts[name] = parts
        for part in parts:
            part.hold()

    def clear(self) -> None:
        self.__init__(self.budget)  # type: ignore[misc]


def storages_of(value: Any) -> Iterator[tuple[int, int]]:
    """(address, bytes) of all memory that a contribution keeps alive. Parameters and buffers are there anyway."""
    if isinstance(value, Tensor):
        if value.layout != torch.strided:  # it has no address, and little of it exists
            return
        storage = value.untyped_storage()
        yield storage.data_ptr(), storage.nbytes()
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from storages_of(item)
    elif isinstance(value, dict):
        yield from storages_of(list(value.values()))
    elif isinstance(value, (Contribution, ModuleGradients, Call)):
        for name, item in vars(value).items():
            if name not in ("state", "random_state"):  # small, and nested
                yield from storages_of(item)


def rows_are_smaller(part: Contribution) -> bool:
    """Do its individual gradients take less memory than what they are made of?"""
    if isinstance(part, Rows):
        return False
    formed = part.samples * part.shape.numel() * 4  # bytes, of the usual single precision
    return formed < sum(dict(storages_of(part)).values())

"""A signal in two halves: what it takes from a tensor on its device, and what it makes of it on the host.

A signal is a generator: it yields a list of small tensors, is sent the same as arrays, and returns its numbers. Tensors of
the CPU are arrays already, so it goes on at once (numpy takes a fraction of torch's time for so few numbers); from another
device all signals of a step are brought over with one transfer, when the step is over.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from functools import wraps
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from cockpit_core.foundation.transfer import Asked, Transfer

LONG = 1024
"""Values of which finding the middle one takes less time than sorting all."""
T = TypeVar("T")
Steps = Generator[list[Tensor], list[np.ndarray], T]


class Reading:
    """One signal at work. ``value`` is known once it ``is_done``."""

    def __init__(self, steps: Steps[Any]):
        self.value: Any = None
        self.steps: Steps[Any] | None = None
        self.tensors: list[Tensor] = []
        self.asked: Asked | None = None
        try:
            wanted = next(steps)
        except StopIteration as end:
            self.value = end.value
            return
        self.steps = steps
        if are_here(wanted):
            self.answer([(tensor.detach() if tensor.requires_grad else tensor).numpy() for tensor in wanted])
        else:  # the user may write into them before they are read
            self.tensors = [tensor.detach().clone(memory_format=torch.contiguous_format) for tensor in wanted]

    @property
    def is_done(self) -> bool:
        return self.steps is None

    def ask(self, transfer: Transfer) -> None:
        """What it waits for is transferred with whatever else comes from the device."""
        if self.asked is None and not self.is_done:
            self.asked = transfer.ask(self.tensors)

    def read(self) -> list[np.ndarray]:
        return [] if self.asked is None else [tensor.numpy() for tensor in self.asked.read()]

    def answer(self, arrays: list[np.ndarray]) -> None:
        steps, self.steps, self.tensors = self.steps, None, []
        assert steps is not None
        try:
            with np.errstate(all="ignore"):  # numbers may be infinite
                steps.send(arrays)
        except StopIteration as end:
            self.value = end.value


def are_here(tensors: Sequence[Tensor]) -> bool:
    return all(tensor.is_cpu for tensor in tensors)


def signal(function: Callable[..., Steps[T]]) -> Callable[..., Reading]:
    """What the generator returns, in a ``Reading``."""

    @wraps(function)
    def read(*args: Any, **options: Any) -> Reading:
        return Reading(function(*args, **options))

    return read


def fetch(readings: Iterable[Reading], transfer: Transfer) -> list[tuple[Reading, list[np.ndarray]]]:
    """What those that wait want, each with its reading, with one transfer for all."""
    waiting = [reading for reading in readings if not reading.is_done]
    for reading in waiting:
        reading.ask(transfer)
    return [(reading, reading.read()) for reading in waiting]


def lower_median(values: np.ndarray) -> Any:
    """The median along the last dimension; of an even number the lower one, like torch's. NaN where a value is NaN."""
    place = (values.shape[-1] - 1) // 2
    if values.shape[-1] > LONG:
        middle, last = np.partition(values, place, axis=-1)[..., place], values.max(axis=-1)
    else:
        ordered = np.sort(values, axis=-1)  # what is no number comes last
        middle, last = ordered[..., place], ordered[..., -1]
    broken = np.isnan(last)
    return np.where(broken, np.nan, middle) if broken.any() else middle

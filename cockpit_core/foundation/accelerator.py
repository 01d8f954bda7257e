"""A device that works on its own: when it reached a point, without waiting for it, and numbers that are read
together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

HOSTS = ("cpu", "meta")


def find_accelerator(tensors: Iterable[Tensor]) -> torch.device | None:
    """The device that works beside the host; None where there is none, or it has no events that know the time."""
    device = next((tensor.device for tensor in tensors if tensor.device.type not in HOSTS), None)
    return device if device is not None and has_events(device) else None


@cache
def has_events(device: torch.device) -> bool:
    try:
        first, second = record(device), record(device)
        second.synchronize()
        return first.elapsed_time(second) >= 0
    except (RuntimeError, NotImplementedError, AttributeError, TypeError, ValueError):
        return False


def new_event(device: torch.device) -> Any:
    """CUDA's and XPU's own ones are older than ``torch.Event``, which has no class of its own for each device."""
    own = getattr(getattr(torch, device.type, None), "Event", None)
    return torch.Event(device, enable_timing=True) if own is None else own(enable_timing=True)


def record(device: torch.device, event: Any = None) -> Any:
    """The event, put into the queue that the user's work of this thread goes into."""
    event = new_event(device) if event is None else event
    current = getattr(getattr(torch, device.type, None), "current_stream", None)
    event.record(*([] if current is None else [current(device)]))
    return event


def is_capturing(device: torch.device) -> bool:
    """Is the user's work being written into a graph, to be run later? Then nothing of ours may get in."""
    asks = getattr(getattr(torch, device.type, None), "is_current_stream_capturing", None)
    return asks is not None and asks()


def read_numbers(numbers: Sequence[Tensor]) -> list[float]:
    """Scalars of a device in double precision; all of them are waited for once."""
    if not numbers:
        return []
    return torch.stack([number.detach().double().to(numbers[0].device) for number in numbers]).tolist()

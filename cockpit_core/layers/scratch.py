"""Memory that is used again and again for what lives for a moment only.

A layer's individual gradients are formed in blocks of a few megabytes, and between two layers something small is kept
until the step ends. An allocator puts that into the hole the last block left, the next block no longer fits there,
and a process would grow by one block per layer: with 48 convolutions, to twice what is in use.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


class Scratch:
    """One buffer for each purpose; what was taken is overwritten when it is taken again."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, torch.dtype], Tensor] = {}

    def take(self, purpose: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Memory of this shape, of the dtype and on the device of ``like``, with whatever it contains."""
        if like.device.type != "cpu":  # their allocators keep blocks of a size together
            return like.new_empty(shape)
        size, key = math.prod(shape), (purpose, like.dtype)
        buffer = self._buffers.get(key)
        if buffer is None or len(buffer) < size:
            self._buffers.pop(key, None)
            del buffer
            buffer = self._buffers[key] = like.new_empty(size)
        return buffer[:size].view(shape)

    def clear(self) -> None:
        self._buffers.clear()

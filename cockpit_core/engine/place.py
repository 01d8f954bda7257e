"""Where the parameters are: a sample of their elements, taken in a moment, to notice that they were moved."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

TENSORS = 16
ELEMENTS = 64
"""Enough for whatever moves a network as a whole: a step, a perturbation of it, an average put in its place."""
BACK = 1e-2
"""So much of the way there and back may be left by rounding."""


class Place:
    """Up to 16 tensors spread over the network, the last one among them, and up to 64 elements of each."""

    def __init__(self, parameters: Sequence[Tensor]):
        gap = max(1, -(-len(parameters) // TENSORS))
        self.parameters = list(parameters)[::-1][::gap]
        self.values = self.read()
        self.precision = max((torch.finfo(p.dtype).eps for p in self.parameters if p.is_floating_point()), default=0.0)

    def read(self) -> Tensor:
        with torch.no_grad():
            parts = [sample(p.detach()).double().cpu() for p in self.parameters]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)

    def has_moved(self) -> bool:
        """By whatever little: a difference of one rounding unit counts."""
        return self.distance(self.read()) > 0

    def distance(self, values: Tensor) -> float:
        """The largest difference of an element; infinite where one of the two is not a number."""
        if values.shape != self.values.shape:
            return float("inf")
        same = (values == self.values) | (values.isnan() & self.values.isnan())
        apart = (values - self.values).abs().masked_fill(same, 0.0)
        return float(torch.nan_to_num(apart, nan=float("inf")).max()) if len(apart) else 0.0

    def is_back(self, other: Place) -> bool:
        """Are the parameters here again, after they were at ``other``?"""
        return self.is_near(BACK * self.distance(other.values), self.read())

    def is_near(self, tolerance: float, values: Tensor) -> bool:
        """Within the tolerance and what rounding leaves."""
        scale = float(torch.nan_to_num(self.values).abs().max()) if len(self.values) else 0.0
        return self.distance(values) <= tolerance + 8 * self.precision * scale


def sample(p: Tensor) -> Tensor:
    count = min(p.numel(), ELEMENTS)
    gap = max(1, p.numel() // max(count, 1))
    packed = p.is_contiguous() or (p.dim() == 4 and p.is_contiguous(memory_format=torch.channels_last))
    if not packed:
        return p.reshape(-1)[::gap][:count]
    return p.as_strided((count,), (gap,), p.storage_offset())  # no copy, whatever the order of the dimensions


class Unseen:
    """Notices parameters that move although their optimizer's ``step`` is never called.

    Accumulating gradients over many batches moves nothing, so it is never taken for that.
    """

    FIRST, NEXT = 8, 16

    def __init__(self, parameters: Sequence[Tensor]):
        self.parameters = list(parameters)
        self.place: Place | None = None

    def looks(self, losses: int) -> bool:
        """Asked after every 8th loss since the last step."""
        if self.place is None or losses < self.NEXT:
            self.place = Place(self.parameters)
            return False
        return self.place.has_moved()

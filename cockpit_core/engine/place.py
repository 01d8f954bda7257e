"""Where the parameters are: a sample of their elements, taken in a moment, to notice that they were moved."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cockpit_core.foundation.transfer import Asked, Transfer
from cockpit_core.foundation.ungraded import Ungraded

TENSORS = 16
ELEMENTS = 64
"""Enough for whatever moves a network as a whole: a step, a perturbation of it, an average put in its place."""
PLAIN = (torch.float32, torch.float64)
HERE = (Tensor, torch.nn.Parameter)
"""Tensors of other classes may hold their numbers elsewhere."""
BACK = 1e-2
"""Rounding may leave this share of the way there and back."""


class Windows:
    """Views of the elements that are looked at, which lie on the host: most often they are where they were last time."""

    def __init__(self) -> None:
        self.known: dict[int, tuple[tuple[Any, ...], np.ndarray]] = {}

    def of(self, p: Tensor) -> np.ndarray | None:
        """None where numpy cannot see them."""
        if type(p) not in HERE or not p.is_cpu or p.dtype not in PLAIN or p.layout != torch.strided:
            self.known.pop(id(p), None)
            return None
        place = p.data_ptr(), p.dtype, p.shape, p.stride()
        known = self.known.get(id(p))
        if known is None or known[0] != place:
            known = self.known[id(p)] = place, sample(p.detach()).numpy()
        return known[1]


class Place:
    """Up to 16 tensors spread over the network, the last one among them, and up to 64 elements of each."""

    def __init__(self, parameters: Sequence[Tensor], windows: Windows | None = None):
        gap = max(1, -(-len(parameters) // TENSORS))
        self.parameters = list(parameters)[::-1][::gap]
        self.windows = windows
        self.taken = self.take()
        self.asked: Asked | None = None

    def ask(self, transfer: Transfer) -> Place:
        """Its values are transferred with whatever else is wanted on the host."""
        if isinstance(self.taken, Tensor) and self.asked is None:
            self.asked = transfer.ask([self.taken])
        return self

    @cached_property
    def values(self) -> np.ndarray:
        """Values on another device are read only when somebody asks: inside a backward pass nothing may wait for
        them."""
        return to_array(self.taken if self.asked is None else self.asked.read()[0])

    def take(self) -> np.ndarray | Tensor:
        """A copy, on the host as an array: numpy is several times faster than torch for so few numbers."""
        if self.windows is not None:
            views = [self.windows.of(p) for p in self.parameters]
            if all(view is not None for view in views):
                return side_by_side(views)  # type: ignore[arg-type]
        with Ungraded():
            parts = [sample(p) for p in self.parameters]
            if all(part.is_cpu and part.dtype in PLAIN for part in parts):
                return side_by_side([part.detach().numpy() for part in parts])
            if parts and not any(part.is_cpu or part.is_complex() for part in parts):
                return torch.cat([part.double().to(parts[0].device) for part in parts])
            return np.concatenate([as_array(part) for part in parts])

    def read(self) -> np.ndarray:
        return to_array(self.take())

    def has_moved(self) -> bool:
        """However little: a difference of one rounding unit counts."""
        return self.distance(self.read()) > 0

    def distance(self, values: np.ndarray) -> float:
        """The largest difference of an element; infinite where one of the two is not a number."""
        if values.shape != self.values.shape:
            return math.inf
        if values.tobytes() == self.values.tobytes():
            return 0.0
        with np.errstate(invalid="ignore", over="ignore"):
            apart = np.abs(values - self.values)
        if math.isfinite(largest := float(np.maximum.reduce(apart))):
            return largest
        apart[(values == self.values) | (np.isnan(values) & np.isnan(self.values))] = 0.0
        return math.inf if np.isnan(apart).any() else float(apart.max())

    def has_same_parameters(self, other: Place) -> bool:
        pairs = zip(self.parameters, other.parameters, strict=False)
        return len(self.parameters) == len(other.parameters) and all(one is same for one, same in pairs)

    def is_back(self, other: Place) -> bool:
        """Are the parameters here again, after they were at ``other``?"""
        return self.is_near(BACK * self.distance(other.values), self.read())

    def is_near(self, tolerance: float, values: np.ndarray) -> bool:
        """Within the tolerance and what rounding leaves."""
        apart = self.distance(values)
        if apart <= tolerance:
            return True
        scale = float(np.nan_to_num(np.abs(self.values)).max(initial=0.0))
        precision = max((torch.finfo(p.dtype).eps for p in self.parameters if p.is_floating_point()), default=0.0)
        return apart <= tolerance + 8 * precision * scale


def to_array(taken: np.ndarray | Tensor) -> np.ndarray:
    return taken.cpu().numpy() if isinstance(taken, Tensor) else taken


def side_by_side(parts: list[np.ndarray]) -> np.ndarray:
    """A copy in double precision."""
    values, start = np.empty(sum(len(part) for part in parts)), 0
    for part in parts:
        end = start + len(part)
        values[start:end] = part
        start = end
    return values


def as_array(part: Tensor) -> np.ndarray:
    return (
        part.double().cpu().numpy()
        if not part.is_complex()
        else torch.view_as_real(part).double().cpu().numpy().ravel()
    )


def sample(p: Tensor) -> Tensor:
    size = p.numel()
    count, gap = (size, 1) if size <= ELEMENTS else (ELEMENTS, size // ELEMENTS)
    packed = p.is_contiguous() or (p.dim() == 4 and p.is_contiguous(memory_format=torch.channels_last))
    if not packed:
        return p.reshape(-1)[::gap][:count]
    return p.as_strided((count,), (gap,), p.storage_offset())  # no copy, whatever the order of the dimensions


class Unseen:
    """Notices parameters that move although their optimizer's ``step`` is never called.

    Accumulating gradients over many batches moves nothing, so it is never mistaken for that.
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

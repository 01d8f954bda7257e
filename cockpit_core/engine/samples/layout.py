"""From a pair of cotangents at a call's output to the places of its samples."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

SPAN = 16.0
NOISE = {torch.float64: 1e-8, torch.float32: 2e-4}
"""How much two cotangents that should be multiples of each other may differ, relatively."""


@dataclass(frozen=True)
class Layout:
    """Where the samples of an output are: along one dimension, or row by row.

    ``rows`` [leading places]: the sample of each, -1 where no loss depends on it. ``mixed``: some row belongs to
    several samples. All three empty: no loss was reached from here.
    """

    dim: int | None = None
    rows: Tensor | None = None
    lead: int = 1
    mixed: bool = False

    @property
    def known(self) -> bool:
        return self.dim is not None or self.rows is not None


@lru_cache(maxsize=64)
def weights_of(samples: int) -> Tensor:
    """A weight for each sample, [B] between 1 and 16, in no order, each a constant factor from the next."""
    own = torch.Generator().manual_seed(20210611 + samples)
    order = torch.randperm(samples, generator=own, dtype=torch.int64)
    return SPAN ** (order.double() / max(samples - 1, 1))


def weigh(tensor: Tensor, dim: int, samples: int, *, inner: bool = False) -> Tensor:
    """Each sample's part times its weight. A dimension of k B entries has k of each sample, one behind the other, or
    (``inner``) all samples k times."""
    weights = weights_of(samples).to(tensor)
    if tensor.shape[dim] != samples:
        count = tensor.shape[dim] // samples
        weights = weights.repeat(count) if inner else weights.repeat_interleave(count)
    return tensor * weights.reshape(-1, *(1,) * (tensor.dim() - dim - 1))


def noise_of(tensor: Tensor) -> float:
    return NOISE.get(tensor.dtype, 4e-2)


def lies_along(pair: tuple[Tensor, Tensor], dim: int, samples: int) -> bool:
    """Are the samples counted by this dimension?"""
    c, weighted = pair
    if c.dim() <= dim or c.shape[dim] != samples:
        return False
    rest = torch.linalg.vector_norm(weighted - weigh(c, dim, samples))
    return bool(rest <= noise_of(c) * torch.linalg.vector_norm(weighted))


def find_layout(pair: tuple[Tensor, Tensor], samples: int, preferred: int, leads: tuple[int, ...]) -> Layout:
    """``preferred``: the dimension that is tried first. ``leads``: how many leading dimensions count rows."""
    c, _ = pair
    if not bool(torch.isfinite(torch.linalg.vector_norm(c))):
        return Layout()
    if not bool(c.any()):
        return Layout()
    counting = max(
        leads, default=c.dim()
    )  # a feature is no sample, though its cotangent may look so: all others are zero
    dims = sorted(range(c.dim()), key=lambda dim: (dim >= counting, dim != preferred))
    for dim in dims[:counting]:
        if lies_along(pair, dim, samples):
            return Layout(dim=dim)
    for lead in leads:
        if 0 < lead <= c.dim():
            rows = try_orders(pair, lead, samples)
            rows = read_rows(pair, lead, samples) if rows is None else rows
            if rows is not None:
                return Layout(rows=rows, lead=lead)
    for dim in dims[counting:]:
        if lies_along(pair, dim, samples):
            return Layout(dim=dim)
    return Layout(mixed=True)


def try_orders(pair: tuple[Tensor, Tensor], lead: int, samples: int) -> Tensor | None:
    """k rows of each sample, samples outermost or innermost: seen as a whole, so little precision is needed."""
    c, weighted = (tensor.reshape(tensor.shape[:lead].numel(), -1) for tensor in pair)
    if len(c) % samples:
        return None
    order = torch.arange(samples, device=c.device)
    for rows in (order.repeat_interleave(len(c) // samples), order.repeat(len(c) // samples)):
        expected = c * weights_of(samples).to(c)[rows, None]
        if bool(torch.linalg.vector_norm(weighted - expected) <= noise_of(c) * torch.linalg.vector_norm(weighted)):
            return rows
    return None


def read_rows(pair: tuple[Tensor, Tensor], lead: int, samples: int) -> Tensor | None:
    """The sample of each leading place, by its weight; None where some place has more than one sample."""
    c, weighted = (tensor.reshape(tensor.shape[:lead].numel(), -1).double() for tensor in pair)
    squared = c.square().sum(1)
    silent = squared <= (1e-3 * noise_of(pair[0])) ** 2 * squared.max()
    ratio = (c * weighted).sum(1) / squared.clamp(min=1e-300)
    weights, order = weights_of(samples).to(c.device).sort()
    place = torch.searchsorted(weights.log(), ratio.clamp(min=1e-3).log()).clamp(1, max(samples - 1, 1))
    lower, upper = weights[place - 1], weights[place.clamp(max=samples - 1)]
    place = torch.where((ratio / lower).abs() < (upper / ratio).abs(), place - 1, place.clamp(max=samples - 1))
    gap = SPAN ** (1 / max(samples - 1, 1)) - 1
    allowed = min(30 * noise_of(pair[0]), gap / 3) * weights[place]
    rest = torch.linalg.vector_norm(weighted - c * weights[place, None], dim=1)
    if not bool(((rest <= allowed * squared.sqrt()) | silent).all()):
        return None
    return torch.where(silent, -1, order[place])


def is_in_order(rows: Tensor, samples: int) -> bool:
    """k rows of the first sample, then k of the second, ..."""
    if len(rows) % samples:
        return False
    expected = torch.arange(samples, device=rows.device).repeat_interleave(len(rows) // samples)
    return bool(((rows == expected) | (rows == -1)).all())

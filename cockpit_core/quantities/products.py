"""Scalar products of two sets of tensors, layer by layer, and the cosines that follow."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from cockpit_core.foundation.sharded import whole
from cockpit_core.kernels.native.reducing import can_reduce, multiply_pairs

CHUNK = 2**16
"""This many elements at a time in their own precision; the sums of the pieces are added in float64."""


def measure_products(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> dict[str, float]:
    """``x . y`` per layer that both have, with one transfer from the device; small ones on the CPU with one call."""
    names = [name for name in one if name in other]
    pairs = [(whole(one[name].detach()), whole(other[name].detach())) for name in names]
    small = [is_small(x, y) for x, y in pairs]
    together = iter(multiply_small([pair for pair, own in zip(pairs, small, strict=True) if own]))
    apart = iter(read([product(x, y) for (x, y), own in zip(pairs, small, strict=True) if not own]))
    return {name: next(together if own else apart) for name, own in zip(names, small, strict=True)}


def read(products: list[Tensor]) -> list[float]:
    return torch.stack(products).tolist() if products else []


def is_small(x: Tensor, y: Tensor) -> bool:
    """Does multiplying them take less time than asking for it?"""
    if x.numel() > CHUNK or x.dtype != y.dtype or not can_reduce(x, 1):
        return False
    return y.is_cpu and x.numel() == y.numel() and x.is_contiguous() and y.is_contiguous()


def multiply_small(pairs: list[tuple[Tensor, Tensor]]) -> list[float]:
    by_dtype: dict[torch.dtype, list[int]] = {}
    for k, (x, _) in enumerate(pairs):
        by_dtype.setdefault(x.dtype, []).append(k)
    dots = [0.0] * len(pairs)
    for places in by_dtype.values():
        products = multiply_pairs([pairs[k] for k in places]).tolist()
        for k, value in zip(places, products, strict=True):
            dots[k] = value
    return dots


def product(one: Tensor, other: Tensor) -> Tensor:
    x, y = one.reshape(-1), other.reshape(-1)
    if x.dtype.itemsize < 4 or x.dtype != y.dtype:
        x, y = x.double(), y.double()
    starts = range(0, max(len(x), 1), CHUNK)
    parts = [torch.linalg.vecdot(x[k : k + CHUNK], y[k : k + CHUNK]).double() for k in starts]
    return parts[0] if len(parts) == 1 else torch.stack(parts).sum()


def cosine(product: float, one: float, other: float) -> float | None:
    """None where one of the lengths is zero: there is no direction then."""
    lengths = one * other
    if lengths == 0:
        return None
    return max(-1.0, min(1.0, product / lengths)) if math.isfinite(product / lengths) else math.nan


def cosines(
    products: Mapping[str, float], one: Mapping[str, float], other: Mapping[str, float]
) -> tuple[float | None, dict[str, float]]:
    """The cosine of the network (products and squares added first) and of each layer that has a direction."""
    layers = {name: cosine(value, one[name], other[name]) for name, value in products.items()}
    lengths = (math.sqrt(sum(norms[name] ** 2 for name in products)) for norms in (one, other))
    network = cosine(sum(products.values()), *lengths)
    return network, {name: value for name, value in layers.items() if value is not None}

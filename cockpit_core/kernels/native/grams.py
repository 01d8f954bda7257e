"""Norms of the individual gradients of Linear layers with several positions, of many layers at once: from products of
positions with each other, without forming a gradient."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cockpit_core.kernels.native import find_library
from cockpit_core.kernels.native.reducing import address_of
from cockpit_core.kernels.native.walking import walk

lowest, add = np.fmin.reduce, np.add.reduce
"""What numpy's functions do, without what they do for arrays of any kind; ``fmin`` passes over NaN."""
ALONE = 1 << 17
"""Numbers that are read: less work than this is not worth waking a thread."""


@dataclass(frozen=True)
class Sides:
    """``g_n = scale * sum_s b_{n,s} a_{n,s}^T``: ``b`` [n, S, out], ``a`` [n, S, in], the ``gradient`` [out, in] that they
    should average to, and a fixed direction ``left0 right0^T``."""

    b: Tensor
    a: Tensor
    scale: float
    gradient: Tensor
    left0: Tensor
    right0: Tensor


@dataclass(frozen=True)
class Products:
    """Of one layer: ``norms`` [n] are ``||g_n||^2``; ``left``: the smallest share of the squares of single positions that is
    left in one. ``fixed`` and ``along``: mean and mean size of ``g_n`` along the fixed direction and along one where the
    gradient is large; ``expected``: the gradient along both; ``length``: its norm."""

    norms: Tensor
    left: float
    fixed: tuple[float, float]
    along: tuple[float, float]
    length: float
    expected: tuple[float, float]


def can_take(b: Tensor, a: Tensor) -> bool:
    """Numbers of one position lie side by side."""
    return b.stride(2) == 1 and a.stride(2) == 1


def reduce_grams(layers: Sequence[Sides]) -> list[Products]:
    """All of one dtype, and with equally many samples."""
    library = find_library()
    assert library is not None
    dtype, samples = layers[0].b.dtype, layers[0].b.shape[0]
    looks, table, scales = array("q"), array("q"), array("d", [own.scale for own in layers])
    held, work = list[Tensor](), 0
    for k, own in enumerate(layers):
        check_fit(own, dtype, samples)
        (_, positions, out), inner = own.b.shape, own.a.shape[2]
        gradient, both = own.gradient.contiguous(), own.b.new_empty(out + inner)
        held += [gradient, both]
        fixed = own.left0.data_ptr(), own.right0.data_ptr()
        along = both.data_ptr(), both.data_ptr() + out * both.element_size()
        looks.extend((gradient.data_ptr(), *fixed, *along, out, inner))
        steps = (*own.b.stride()[:2], *own.a.stride()[:2])
        table.extend((own.b.data_ptr(), own.a.data_ptr(), *steps, positions, out, inner, *fixed, *along, k * samples))
        work += samples * positions * positions * (out + inner) // 16
    lengths, numbers = np.empty((len(layers), 3)), np.empty((len(layers), samples, 4))
    library.function("look_at_matrices", dtype)(address_of(looks), len(layers), lengths.ctypes.data)
    threads = torch.get_num_threads() if work >= 2 * ALONE else 1
    each, items = max(1, -(-samples // (4 * threads))) if threads > 1 else samples, array("q")
    for first in range(0, samples, each):
        items.extend((len(layers), first, min(first + each, samples)))
    walk("walk_grams", dtype, items, table, scales, threads, numbers.ctypes.data)
    return summarise(numbers, lengths)


def summarise(numbers: np.ndarray, lengths: np.ndarray) -> list[Products]:
    """Of [layers, samples, 4] and [layers, 3], as the kernels leave them."""
    norms, own, seen = numbers[:, :, 0], numbers[:, :, 1], numbers[:, :, 2:]
    with np.errstate(all="ignore"):  # gradients may be infinite, or zero
        left = lowest(np.where(own > 0, norms / own, np.inf), 1, initial=np.inf).tolist()
        means, sizes = (add(seen, 1) / seen.shape[1]).tolist(), (add(np.abs(seen), 1) / seen.shape[1]).tolist()
    each = torch.from_numpy(np.ascontiguousarray(norms)).unbind()
    return [
        Products(norm, share, (mean[0], size[0]), (mean[1], size[1]), squares**0.5, (first, second))
        for norm, share, mean, size, (squares, first, second) in zip(
            each, left, means, sizes, lengths.tolist(), strict=True
        )
    ]


def check_fit(own: Sides, dtype: torch.dtype, samples: int) -> None:
    """A kernel would read what is not there."""
    (n, positions, out), inner = own.b.shape, own.a.shape[2]
    sizes = n == samples and own.a.shape[:2] == (n, positions) and own.gradient.shape == (out, inner)
    fixed = own.left0.shape == (out,) and own.right0.shape == (inner,)
    given = (own.b, own.a, own.gradient, own.left0, own.right0)
    alike = all(tensor.dtype == dtype and tensor.is_cpu for tensor in given) and can_take(own.b, own.a)
    if not (sizes and fixed and alike and own.left0.is_contiguous() and own.right0.is_contiguous()):
        raise ValueError(f"{tuple(own.b.shape)}, {tuple(own.a.shape)} and {tuple(own.gradient.shape)} do not fit")

"""The individual gradients of a Linear with many tokens, or of a convolution, from all positions: no patches, no stored
block. The counterpart of ``convolving``, which walks over nonzero output gradients alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cockpit_core.kernels.bins import AnyBins
from cockpit_core.kernels.native import find_library
from cockpit_core.kernels.native.convolving import (
    ALONE,
    PADDING,
    Geometry,
    Sizes,
    check_fit,
    lay_out,
    move_channels,
    move_directions,
    widen_space,
)
from cockpit_core.kernels.native.reducing import Reduced, Share, add_up, find_rule, pointer_of
from cockpit_core.kernels.threads import cut, share


@dataclass(frozen=True)
class Sides:
    """Both sides of the products, as the kernel reads them: ``image`` flat, ``left`` with its numbers between samples,
    output channels and positions; ``sizes`` in the order of ``reduce_convolution`` in convolution.h."""

    image: Tensor
    left: Tensor
    steps: Sizes
    samples: int
    sizes: Sizes
    places: np.ndarray
    starts: np.ndarray
    products: int


def reduce_convolution(
    left: Tensor, image: Tensor, geometry: Geometry, groups: int, shape: Sizes, scale: float,
    directions: Sequence[Tensor], bins: AnyBins | None, around: Sizes = (),
) -> Reduced:  # fmt: skip
    """Of ``g_n[o, c, k] = scale * sum_s left_n[o, s] image_n[c, patch(k, s)]``: ``left`` [n, rows, *out], ``image``
    [n, channels, *space], which zeros are put ``around``."""
    check_fit(left, image, geometry, groups, shape, around)
    space, out, channels = widen_space(tuple(image.shape[2:]), around), tuple(left.shape[2:]), image.shape[1] // groups
    places, starts, rows = lay_out(geometry, space, out, channels)
    left, positions = left.contiguous(), math.prod(out)
    each = channels * math.prod(space)
    sides = Sides(
        move_channels(image, groups, around), left, (left.shape[1] * positions, positions, 1, groups * each), len(left),
        (groups, left.shape[1] // groups, each, len(places), len(starts), *rows), places, starts,
        left.numel() * math.prod(shape[1:]),
    )  # fmt: skip
    return _reduce(
        sides, scale, move_directions(directions, shape, left.dtype), len(directions), math.prod(shape), bins
    )


def reduce_positions(b: Tensor, a: Tensor, scale: float, directions: Sequence[Tensor], bins: AnyBins | None) -> Reduced:
    """Of ``g_n = scale * sum_s b_{n,s} a_{n,s}^T``: ``b`` [n, S, out], ``a`` [n, S, in]; each direction has out * in
    elements."""
    samples, positions, out = b.shape
    inner = a.shape[2]
    if a.shape[:2] != b.shape[:2] or a.dtype != b.dtype or any(d.numel() != out * inner for d in directions):
        raise ValueError(f"{tuple(b.shape)} and {tuple(a.shape)} do not fit each other, or directions do not fit them")
    b, a, along = b.contiguous(), add_room(a), None
    if directions:
        rows = [d.reshape(out, inner).to(b.dtype) for d in directions]
        along = add_room(torch.stack(rows) if len(rows) > 1 else rows[0])
    geometry = ((1,), (1,), (1,))
    places, starts, lines = lay_out(geometry, (positions,), (positions,), inner)
    steps = (positions * out, 1, out, positions * inner)
    sizes = (1, out, positions * inner, positions, 1, *lines)
    sides = Sides(a, b, steps, samples, sizes, places, starts, b.numel() * inner)
    return _reduce(sides, scale, along, len(directions), out * inner, bins)


def add_room(tensor: Tensor) -> Tensor:
    """Its numbers in order; where rows are no whole number of vectors, with room behind them for what a kernel may read."""
    if tensor.shape[-1] % PADDING == 0:
        return tensor.contiguous()
    buffer = tensor.new_empty(tensor.numel() + PADDING)
    buffer[: tensor.numel()].view(tensor.shape).copy_(tensor)
    buffer[tensor.numel() :] = 0
    return buffer


def _reduce(sides: Sides, scale: float, along: Tensor | None, number: int, apart: int, bins: AnyBins | None) -> Reduced:
    library = find_library()
    assert library is not None
    left, image, samples = sides.left, sides.image, sides.samples
    kernel, rule, size = library.function("reduce_dense", left.dtype), *find_rule(bins, left.dtype)
    sizes, steps, each = np.array(sides.sizes, np.int64), np.array(sides.steps, np.int64), left.element_size()

    def run(low: int, high: int) -> Share:
        found = Share(samples, bins is not None, size)
        kernel(
            image.data_ptr() + low * sides.steps[3] * each, left.data_ptr() + low * sides.steps[0] * each, high - low,
            sizes.ctypes.data, steps.ctypes.data, sides.places.ctypes.data, sides.starts.ctypes.data, scale,
            0 if along is None else along.data_ptr(), apart, number, pointer_of(rule), found.table_pointer, size,
            found.norms.data_ptr() + 8 * low, found.dots.data_ptr() + 16 * low,
        )  # fmt: skip
        return found

    return add_up(share(run, cut(samples, sides.products, ALONE)))

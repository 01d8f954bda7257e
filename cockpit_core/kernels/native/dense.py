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
from cockpit_core.kernels.native.comparing import MOST_COMPARED
from cockpit_core.kernels.native.convolving import (
    ALONE,
    PADDING,
    Geometry,
    Sizes,
    check_sides,
    lay_out,
    move_channels,
    move_directions,
    widen_space,
)
from cockpit_core.kernels.native.reducing import Reduced, Share, add_up, find_rule, pointer_of
from cockpit_core.kernels.threads import cut, deal, share

CHANNELS = 4
"""Output channels that are cut off together: a whole number of tiles of most sizes."""
CACHED = 2**21
"""Bytes of directions up to which threads share output channels rather than samples."""


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
    directions: Sequence[Tensor], bins: AnyBins | None, around: Sizes = (), compared: int = 0,
) -> Reduced:  # fmt: skip
    """Of ``g_n[o, c, k] = scale * sum_s left_n[o, s] image_n[c, patch(k, s)]``: ``left`` [n, rows, *out], ``image``
    [n, channels, *space], which zeros are put ``around``. The first ``compared`` samples (at most ``MOST_COMPARED``) are
    compared with each other."""
    check_sides(left, image, geometry, groups, shape, around)
    space, out, channels = widen_space(tuple(image.shape[2:]), around), tuple(left.shape[2:]), image.shape[1] // groups
    places, starts, rows = lay_out(geometry, space, out, channels)
    left, positions = left.contiguous(), math.prod(out)
    each = channels * math.prod(space)
    sides = Sides(
        move_channels(image, groups, around, borrowed=True), left,
        (left.shape[1] * positions, positions, 1, groups * each), left.shape[0],
        (groups, left.shape[1] // groups, each, len(places), len(starts), *rows), places, starts,
        left.numel() * math.prod(shape[1:]),
    )  # fmt: skip
    along = move_directions(directions, shape, left.dtype)
    return _reduce(sides, scale, along, len(directions), math.prod(shape), bins, compared)


def reduce_positions(
    b: Tensor, a: Tensor, scale: float, directions: Sequence[Tensor], bins: AnyBins | None, compared: int = 0
) -> Reduced:
    """Of ``g_n = scale * sum_s b_{n,s} a_{n,s}^T``: ``b`` [n, S, out], ``a`` [n, S, in]; each direction has out * in
    elements. The first ``compared`` samples (at most ``MOST_COMPARED``) are compared with each other."""
    samples, positions, out = b.shape
    inner = a.shape[2]
    if a.shape[:2] != b.shape[:2] or a.dtype != b.dtype or any(d.numel() != out * inner for d in directions):
        raise ValueError(f"{tuple(b.shape)} and {tuple(a.shape)} do not fit each other, or directions do not fit them")
    b, a, along = b.contiguous(), add_room(a), None
    if directions:
        each = [d.reshape(out, inner).to(b.dtype) for d in directions]
        along = add_room(torch.stack(each) if len(each) > 1 else each[0])
    geometry = ((1,), (1,), (1,))
    places, starts, lines = lay_out(geometry, (positions,), (positions,), inner)
    steps = (positions * out, 1, out, positions * inner)
    sizes = (1, out, positions * inner, positions, 1, *lines)
    sides = Sides(a, b, steps, samples, sizes, places, starts, b.numel() * inner)
    return _reduce(sides, scale, along, len(directions), out * inner, bins, compared)


def add_room(tensor: Tensor) -> Tensor:
    """Its numbers in order; where rows are no whole number of vectors, with room behind them for what a kernel may read."""
    if tensor.shape[-1] % PADDING == 0:
        return tensor.contiguous()
    buffer = tensor.new_empty(tensor.numel() + PADDING)
    buffer[: tensor.numel()].view(tensor.shape).copy_(tensor)
    buffer[tensor.numel() :] = 0
    return buffer


def _reduce(
    sides: Sides, scale: float, along: Tensor | None, number: int, apart: int, bins: AnyBins | None, compared: int
) -> Reduced:
    library = find_library()
    assert library is not None
    if not 0 <= compared <= min(sides.samples, MOST_COMPARED):
        raise ValueError(f"of {sides.samples} samples {compared} cannot be compared: at most {MOST_COMPARED} are")
    left, image, samples = sides.left, sides.image, sides.samples
    kernel, rule, size = library.function("reduce_dense", left.dtype), *find_rule(bins, left.dtype)
    steps, each = np.array(sides.steps, np.int64), left.element_size()
    groups, channels, row_size = sides.sizes[0], sides.sizes[1], math.prod(sides.sizes[i] for i in (4, 5, 7))
    fits = channels * row_size * number * each <= CACHED  # else directions are read often, and samples leave more room
    by_channels = groups == 1 and channels >= 2 * CHANNELS * torch.get_num_threads() and (fits or compared > 0)

    def run(low: int, high: int) -> tuple[Share, Tensor | None]:
        own, K = Share(samples, bins is not None, size), None
        first, count, row, rows = (0, samples, low, high - low) if by_channels else (low, high - low, 0, channels)
        if compared and not first:
            K = torch.zeros(compared, compared, dtype=torch.float64)
        sizes = np.array((groups, rows, *sides.sizes[2:]), np.int64)
        kernel(
            image.data_ptr() + first * sides.steps[3] * each,
            left.data_ptr() + (first * sides.steps[0] + row * sides.steps[1]) * each, count,
            sizes.ctypes.data, steps.ctypes.data, sides.places.ctypes.data, sides.starts.ctypes.data, scale,
            0 if along is None else along.data_ptr() + row * row_size * each, apart, number, pointer_of(rule),
            own.table_pointer, size, own.norms.data_ptr() + 8 * first, own.dots.data_ptr() + 16 * first,
            compared if K is not None else 0, pointer_of(K),
        )  # fmt: skip
        return own, K

    if by_channels:
        bounds = deal(channels, sides.products, ALONE, CHANNELS)
    else:
        bounds = together(cut(samples, sides.products, ALONE), compared)
    parts = share(run, bounds)
    total = add_up([own for own, _ in parts])
    compares = [K for _, K in parts if K is not None]
    total.gram = sum(compares[1:], compares[0]) if compares else None
    return total


def together(bounds: list[tuple[int, int]], least: int) -> list[tuple[int, int]]:
    """The same parts, but the first has so many at least: those are compared with each other."""
    if not bounds or bounds[0][1] >= least:
        return bounds
    return [(0, least), *((max(low, least), high) for low, high in bounds[1:] if high > least)]

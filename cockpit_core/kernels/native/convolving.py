"""The individual gradients of a convolution from its nonzero output gradients alone: no patches, no stored block."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cockpit_core.kernels.bins import AnyBins
from cockpit_core.kernels.native import find_library
from cockpit_core.kernels.native.reducing import Reduced, Share, add_up, find_rule, pointer_of
from cockpit_core.kernels.threads import cut, share

ALONE = 1 << 18  # products: less work than this is not worth waking a thread
PADDING = 16  # numbers that a kernel may read behind the end, and ignores
LARGEST = 2**31 - 1  # places in an image are 32-bit numbers
Sizes = tuple[int, ...]
Geometry = tuple[Sizes, Sizes, Sizes]  # kernel, stride, dilation


@lru_cache(maxsize=256)
def lay_out(geometry: Geometry, space: Sizes, out: Sizes, channels: int) -> tuple[np.ndarray, np.ndarray, Sizes]:
    """Where patches begin in an image [*space, channels], where groups of rows begin in a patch, and (rows of a group,
    numbers between two rows, length of a row)."""
    kernel, stride, dilation = geometry
    steps = [channels * math.prod(space[axis + 1 :]) for axis in range(len(space))]
    places = _grid(out, [s * t for s, t in zip(steps, stride, strict=True)])
    whole = dilation[-1] == 1  # else a row of the kernel has holes: each of its positions is a row of its own
    last = len(space) - 2 if whole else len(space) - 1
    if last < 0:
        return places, np.zeros(1, np.int32), (1, 0, kernel[0] * channels)
    starts = _grid(kernel[:last], [s * d for s, d in zip(steps[:last], dilation[:last], strict=True)])
    return places, starts, (kernel[last], steps[last] * dilation[last], channels * (kernel[-1] if whole else 1))


def _grid(counts: Sequence[int], steps: Sequence[int]) -> np.ndarray:
    total = np.zeros(1, np.int64)
    for count, step in zip(counts, steps, strict=True):
        total = (total[:, None] + step * np.arange(count)).reshape(-1)
    return total.astype(np.int32)


def move_channels(tensor: Tensor, groups: int, around: Sizes = (), *, borrowed: bool = False) -> Tensor:
    """[n, groups * channels, *space] to a flat copy of [n, groups, *space, channels], with room behind it. ``around``: so
    many zeros before and behind each dimension of space, the first one's first. ``borrowed``: the next such call of this
    thread may overwrite it."""
    space, tensor = tuple(tensor.shape[2:]), tensor.contiguous()
    whole = widen_space(space, around)
    images = tensor.shape[0] * groups
    size = tensor.shape[1] // groups * math.prod(whole)
    if borrowed:
        buffer = take_surrounded(images * size + PADDING, (images, size, space, around), tensor.dtype)
    else:
        buffer = tensor.new_zeros(images * size + PADDING) if any(around) else tensor.new_empty(images * size + PADDING)
        buffer[images * size :] = 0
    if not tensor.numel():
        return buffer
    _move(tensor, buffer, 0, images, begin_rows(space, around), space[-1], size)
    return buffer


def widen_space(space: Sizes, around: Sizes) -> Sizes:
    return tuple(size + sum(around[2 * k : 2 * k + 2]) for k, size in enumerate(space))


@lru_cache(maxsize=256)
def begin_rows(space: Sizes, around: Sizes) -> np.ndarray:
    """At which position of the widened space each row of an image begins."""
    whole, before = widen_space(space, around), around[::2] or (0,) * len(space)
    steps = [math.prod(whole[axis + 1 :]) for axis in range(len(space))]
    first = sum(step * skipped for step, skipped in zip(steps, before, strict=True))
    return _grid(space[:-1], steps[:-1]) + np.int32(first)


def _move(tensor: Tensor, buffer: Tensor, start: int, images: int, rows: np.ndarray, width: int, size: int) -> None:
    """Into the buffer from place ``start`` on, so many numbers for each image; ``tensor`` lies in order."""
    library = find_library()
    assert library is not None
    kernel, each, own = library.function("move_channels", tensor.dtype), tensor.element_size(), tensor.numel() // images
    sizes = np.array([own // (len(rows) * width), len(rows), width, size], np.int64)

    def run(low: int, high: int) -> None:
        kernel(
            tensor.data_ptr() + low * own * each, buffer.data_ptr() + (start + low * size) * each, high - low,
            sizes.ctypes.data, rows.ctypes.data,
        )  # fmt: skip

    share(run, cut(images, tensor.numel(), ALONE))


def move_directions(directions: Sequence[Tensor], shape: Sizes, dtype: torch.dtype) -> Tensor | None:
    """Each [rows, channels, *kernel] as [rows, *kernel, channels], all in one flat copy with room behind it. The next call
    of this thread may overwrite it."""
    if not directions:
        return None
    size, positions = math.prod(shape), math.prod(shape[2:])
    buffer = take_room(size * len(directions) + PADDING, dtype)
    buffer[size * len(directions) :] = 0
    for k, direction in enumerate(directions):
        given = direction.reshape(shape).to(dtype).contiguous()
        _move(given, buffer, k * size, shape[0], _ONE_ROW, positions, size // shape[0])
    return buffer


_ONE_ROW = np.zeros(1, np.int32)
MOST_KEPT = 2**23
"""Elements of room that a thread keeps."""


class Rooms(threading.local):
    def __init__(self) -> None:
        self.by_type: dict[torch.dtype, Tensor] = {}
        self.surrounded: dict[torch.dtype, tuple[Tensor, Any]] = {}


_rooms = Rooms()


def take_room(count: int, dtype: torch.dtype) -> Tensor:
    """Memory of this thread, as it was left: asking the system for new pages takes as long as filling them."""
    if count > MOST_KEPT:
        return torch.empty(count, dtype=dtype, device="cpu")
    room = _rooms.by_type.get(dtype)
    if room is None or room.shape[0] < count:
        room = _rooms.by_type[dtype] = torch.empty(count, dtype=dtype, device="cpu")
    return room[:count]


def take_surrounded(count: int, layout: Any, dtype: torch.dtype) -> Tensor:
    """Memory of this thread for images: what surrounds those of this ``layout``, and what lies behind them, is zero. It
    stays so as long as nobody asks for another layout."""
    room, known = _rooms.surrounded.get(dtype, (None, None))
    if room is None or room.shape[0] < count:
        room, known = torch.empty(count, dtype=dtype, device="cpu"), None
    if known != layout:
        room[:count].zero_()
    if count <= MOST_KEPT:
        _rooms.surrounded[dtype] = room, layout
    return room[:count]


def can_walk(image: Tensor, left: Tensor, positions: int) -> bool:
    """Are places 32-bit numbers in an image of so many positions, and is there anything to do?"""
    return image.shape[1] * positions <= LARGEST and min(image.numel(), left.numel()) > 0


def check_fit(left: Sizes, image: Sizes, geometry: Geometry, groups: int, shape: Sizes, around: Sizes = ()) -> None:
    """Of the sizes of both sides: a kernel would read what is not there."""
    space = widen_space(image[2:], around)
    reach = [(o - 1) * s + d * (k - 1) + 1 for o, k, s, d in zip(left[2:], *geometry, strict=True)]
    inside = all(r <= size for r, size in zip(reach, space, strict=True))
    whole = left[0] == image[0] and left[1] % groups == image[1] % groups == 0
    if not (inside and whole and tuple(shape) == (left[1], image[1] // groups, *geometry[0])):
        raise ValueError(f"gradients {left} do not fit an image {image} and a weight {shape}")


def check_sides(left: Tensor, image: Tensor, geometry: Geometry, groups: int, shape: Sizes, around: Sizes = ()) -> None:
    if left.dtype != image.dtype:
        raise ValueError(f"gradients of {left.dtype} do not fit an image of {image.dtype}")
    check_fit(tuple(left.shape), tuple(image.shape), geometry, groups, shape, around)


def reduce_convolution(
    left: Tensor, image: Tensor, geometry: Geometry, groups: int, shape: Sizes, scale: float,
    directions: Sequence[Tensor], bins: AnyBins | None, around: Sizes = (),
) -> Reduced | None:  # fmt: skip
    """Of ``g_n[o, c, k] = scale * sum_s left_n[o, s] image_n[c, patch(k, s)]``: ``left`` [n, rows, *out], ``image``
    [n, channels, *space], which zeros are put ``around``.
    None if something is not finite: 0 * inf is NaN, which a kernel that skips zeros does not see."""
    library = find_library()
    assert library is not None
    samples, space, out = len(left), widen_space(tuple(image.shape[2:]), around), tuple(left.shape[2:])
    channels, number = image.shape[1] // groups, len(directions)
    check_sides(left, image, geometry, groups, shape, around)
    places, starts, rows = lay_out(geometry, space, out, channels)
    sizes = np.array(
        [groups, left.shape[1] // groups, channels * math.prod(space), len(places), len(starts), *rows], np.int64
    )
    moved, left, along = (
        move_channels(image, groups, around, borrowed=True), left.contiguous(),
        move_directions(directions, shape, left.dtype)
    )  # fmt: skip
    kernel, each, rule, size = library.function("reduce_convolution", left.dtype), left[0], *find_rule(bins, left.dtype)

    def run(low: int, high: int) -> tuple[int, Share]:
        own = Share(samples, bins is not None, size)
        weights, at = np.empty(len(places), np.float64), np.empty(len(places), np.int32)
        broken = kernel(
            moved.data_ptr() + low * groups * int(sizes[2]) * moved.element_size(),
            left.data_ptr() + low * each.numel() * left.element_size(), high - low, sizes.ctypes.data,
            places.ctypes.data, starts.ctypes.data, scale, 0 if along is None else along.data_ptr(),
            math.prod(shape), number, pointer_of(rule), own.table_pointer, size, own.norms.data_ptr() + 8 * low,
            own.dots.data_ptr() + 16 * low, weights.ctypes.data, at.ctypes.data,
        )  # fmt: skip
        return broken, own

    work = left.numel() * math.prod(geometry[0]) * channels
    shares = share(run, cut(samples, work, ALONE))
    return None if any(broken for broken, _ in shares) else add_up([part for _, part in shares])

"""Several columns of output gradients of a convolution at once, from the entries that are not zero: squares of individual
gradients, and the way back to the convolution's input.

Columns are [V, n, rows, *places]. ``where`` [n, places, rows] says which output position a place stands for, -1 where
nothing arrives: what a ReLU and a pooling behind the convolution let through. Without it the places are the positions.
Fastest where V lies innermost in memory, then rows; ``send_columns`` gives such a tensor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cockpit_core.kernels.native import TYPES, find_library
from cockpit_core.kernels.native.convolving import (
    ALONE,
    LARGEST,
    PADDING,
    Geometry,
    Sizes,
    check_fit,
    lay_out,
    move_channels,
)
from cockpit_core.kernels.threads import cut, share

MOST_COLUMNS = 10  # that a kernel takes at once
SEGMENT = 24  # bytes, of a Segment in columns.h


@dataclass
class Squared:
    """``squares`` like the weight, ``norms`` [n] (both with the columns' signs), and ``sums`` [V, n, rows] over places."""

    squares: Tensor
    norms: Tensor
    sums: Tensor


def can_take(columns: Tensor) -> bool:
    """On this device, of this dtype."""
    return columns.device.type == "cpu" and columns.dtype in TYPES and find_library() is not None


def _kernel(name: str, dtype: torch.dtype) -> Any:
    library = find_library()
    assert library is not None
    return library.function(name, dtype)


def _several(columns: Tensor) -> list[slice]:
    """As many at once as a kernel takes, evenly."""
    count = len(columns)
    parts = max(1, math.ceil(count / MOST_COLUMNS))
    return [slice(count * k // parts, count * (k + 1) // parts) for k in range(parts)]


def _flat(columns: Tensor) -> tuple[Tensor, np.ndarray]:
    """[V, n, rows, places], and how far apart its numbers lie."""
    flat = columns.reshape(*columns.shape[:3], -1)
    return flat, np.array(flat.stride(), np.int64)


def _check_where(where: Tensor | None, columns: Tensor, out: Sizes) -> None:
    """A kernel would read what is not there."""
    wanted = (columns.shape[1], math.prod(columns.shape[3:]), columns.shape[2])
    if where is None:
        fits = tuple(columns.shape[3:]) == tuple(out)
    else:
        fits = tuple(where.shape) == wanted and where.dtype == torch.int32 and where.is_contiguous()
    if not fits:
        raise ValueError(f"places of columns {tuple(columns.shape)} do not fit output positions {tuple(out)}")


# ---- squares ---------------------------------------------------------------------------------------------------------


def square_columns(
    columns: Tensor, where: Tensor | None, image: Tensor, geometry: Geometry, groups: int, out: Sizes,
    signs: Tensor | None = None,
) -> Squared | None:  # fmt: skip
    """Of ``g_vn[o, c, k] = sum_s columns_vn[o, s] image_n[c, patch(k, s)]``, ``image`` [n, channels, *space] with its
    padding, ``out`` the convolution's output sizes: ``sum_vn signs_vn g_vn^2``, signs [V, n].

    None if the image is not finite: 0 * inf is NaN, which whoever skips zeros does not see; or if it is too large.
    """
    _check_where(where, columns, out)
    shape = (columns.shape[2], image.shape[1] // groups, *geometry[0])
    check_fit(columns.new_empty(()).expand(len(image), shape[0], *out), image, geometry, groups, shape)
    if not columns.numel() or not image.numel() or image[0].numel() > LARGEST:
        return None
    moved, size = move_channels(image, groups), tuple(image.shape[1:])
    found: list[Squared] = []
    for some in _several(columns):
        sign = None if signs is None else signs[some]
        part = _square(columns[some], where, moved, (size, geometry, groups, out, shape), sign)
        if part is None:
            return None
        found.append(part)
    if len(found) == 1:
        return found[0]
    squares, norms = (torch.stack(parts).sum(0) for parts in zip(*((f.squares, f.norms) for f in found), strict=True))
    return Squared(squares, norms, torch.cat([f.sums for f in found]))


def _square(columns: Tensor, where: Tensor | None, moved: Tensor, sizes: Any, signs: Tensor | None) -> Squared | None:
    (channels, *space), geometry, groups, out, shape = sizes
    flat, apart = _flat(columns)
    number, samples, rows, places = flat.shape
    at, starts, (row_count, row_step, length) = lay_out(geometry, tuple(space), out, channels // groups)
    padded = -(-length // PADDING) * PADDING
    image_size = channels // groups * math.prod(space)
    given = np.array([groups, rows // groups, image_size, places, len(starts), row_count, row_step, length, padded])
    signs = None if signs is None else signs.T.to(flat.dtype).contiguous()
    sums, norms = flat.new_zeros(samples, rows, number), torch.zeros(samples, dtype=torch.float64)
    kernel, each = _kernel("square_convolution", flat.dtype), flat.element_size()

    def run(low: int, high: int) -> tuple[int, Tensor]:
        total = flat.new_zeros(rows, len(starts), row_count, padded)
        weights, looked_at = flat.new_empty(places * number), np.empty(places, np.int32)
        broken = kernel(
            moved.data_ptr() + low * groups * image_size * each, flat.data_ptr() + low * flat.stride(1) * each,
            0 if where is None else where.data_ptr() + 4 * low * places * rows, high - low, number, apart.ctypes.data,
            given.ctypes.data, at.ctypes.data, starts.ctypes.data,
            0 if signs is None else signs.data_ptr() + low * number * each, total.data_ptr(),
            norms.data_ptr() + 8 * low, sums.data_ptr() + low * rows * number * each, weights.data_ptr(),
            looked_at.ctypes.data,
        )  # fmt: skip
        return broken, total

    found = share(run, cut(samples, flat.numel() * len(starts) * row_count * length, ALONE))
    if any(broken for broken, _ in found):
        return None
    total = torch.stack([part for _, part in found]).sum(0) if len(found) > 1 else found[0][1]
    squares = total[..., :length].reshape(rows, *shape[2:], shape[1]).movedim(-1, 1)
    return Squared(squares, norms, sums.permute(2, 0, 1))


# ---- the way back ----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def list_sources(geometry: Geometry, padding: Sizes, space: Sizes, out: Sizes) -> np.ndarray:
    """[inputs, kernel]: the output position that a position of the input reaches through one of the kernel, or -1."""
    total, inside = np.zeros((1, 1), np.int64), np.ones((1, 1), bool)
    for kernel, stride, dilation, pad, size, outs in zip(*geometry, padding, space, out, strict=True):
        shifted = np.arange(size)[:, None] + pad - dilation * np.arange(kernel)  # [size, kernel]
        own = (shifted % stride == 0) & (shifted >= 0) & (shifted // stride < outs)
        total = (total[:, None, :, None] * outs + (shifted // stride)[None, :, None, :]).reshape(
            total.shape[0] * size, total.shape[1] * kernel
        )
        inside = (inside[:, None, :, None] & own[None, :, None, :]).reshape(total.shape)
    return np.where(inside, total, -1).astype(np.int32)


def send_columns(
    columns: Tensor, where: Tensor, weight: Tensor, geometry: Geometry, padding: Sizes, space: Sizes, out: Sizes
) -> Tensor | None:
    """Columns at the output of a convolution without groups as columns at its input, [V, n, channels, *space].

    None if the weight is not finite.
    """
    _check_where(where, columns, out)
    if tuple(weight.shape) != (columns.shape[2], weight.shape[1], *geometry[0]) or weight.dtype != columns.dtype:
        raise ValueError(f"columns {tuple(columns.shape)} do not fit a weight {tuple(weight.shape)}")
    if not columns.numel() or weight.numel() > LARGEST or not bool(torch.isfinite(weight).all()):
        return None
    rows, channels = weight.shape[:2]
    filters = weight.new_zeros(weight.numel() + PADDING)
    filters[: weight.numel()].view(-1, rows, channels).copy_(weight.flatten(2).permute(2, 0, 1))
    sources = list_sources(geometry, padding, space, out)
    parts = [_send(columns[some], where, filters, channels, sources, math.prod(out)) for some in _several(columns)]
    sent = parts[0] if len(parts) == 1 else torch.cat(parts, -1)  # [n, inputs, channels, V]
    return sent.permute(3, 0, 2, 1).unflatten(3, space)


def _send(
    columns: Tensor, where: Tensor, filters: Tensor, channels: int, sources: np.ndarray, positions: int
) -> Tensor:
    flat, apart = _flat(columns)
    number, samples, rows, places = flat.shape
    inputs, kernel_size = sources.shape
    sent = flat.new_empty(samples, inputs, channels, number)
    given = np.array([rows, channels, places, positions, inputs, kernel_size])
    kernel, each = _kernel("send_convolution", flat.dtype), flat.element_size()

    def run(low: int, high: int) -> None:
        start, at = np.empty(positions + 2, np.int32), np.empty(rows * places, np.int32)
        weights, room = flat.new_empty(rows * places * number), np.empty(kernel_size * SEGMENT, np.uint8)
        kernel(
            flat.data_ptr() + low * flat.stride(1) * each, where.data_ptr() + 4 * low * places * rows, high - low, number,
            apart.ctypes.data, given.ctypes.data, sources.ctypes.data, filters.data_ptr(),
            sent.data_ptr() + low * sent[0].numel() * each, start.ctypes.data, at.ctypes.data, weights.data_ptr(),
            room.ctypes.data,
        )  # fmt: skip

    share(run, cut(samples, flat.numel() * kernel_size * channels, ALONE))
    return sent

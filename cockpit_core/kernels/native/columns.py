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
    check_sides,
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


class Image:
    """[n, groups, *space, channels of a group] in a flat buffer with room behind it: what kernels read. With its padding."""

    def __init__(self, buffer: Tensor, samples: int, channels: int, space: Sizes, groups: int = 1):
        self.buffer, self.samples, self.channels, self.space, self.groups = buffer, samples, channels, space, groups

    @staticmethod
    def of(image: Tensor, groups: int) -> Image:
        """From [n, channels, *space]."""
        return Image(move_channels(image, groups), len(image), image.shape[1], tuple(image.shape[2:]), groups)

    @staticmethod
    def channels_last(values: Tensor, padding: Sizes) -> Image:
        """From [n, *space, channels], without its padding."""
        space = tuple(size + 2 * pad for size, pad in zip(values.shape[1:-1], padding, strict=True))
        buffer = values.new_zeros(len(values) * math.prod(space) * values.shape[-1] + PADDING)
        inside = buffer[:-PADDING].view(len(values), *space, values.shape[-1])
        for axis, pad in enumerate(padding):
            inside = inside.narrow(axis + 1, pad, values.shape[axis + 1])
        inside.copy_(values)
        return Image(buffer, len(values), values.shape[-1], space)

    @property
    def size(self) -> int:
        """Numbers of one group of one sample."""
        return self.channels // self.groups * math.prod(self.space)

    def check(self, columns: Tensor, geometry: Geometry, out: Sizes, shape: Sizes) -> None:
        """A kernel would read what is not there."""
        like = self.buffer.new_empty(()).expand(self.samples, self.channels, *self.space)
        left = columns.new_empty(()).expand(columns.shape[1], columns.shape[2], *out)
        check_sides(left, like, geometry, self.groups, shape)


@dataclass(frozen=True)
class PatchRows:
    """How a kernel walks over patches: ``lay_out``, and how long rows are with the zeros behind them."""

    places: np.ndarray
    starts: np.ndarray
    rows: int
    step: int
    length: int

    @staticmethod
    def of(image: Image, geometry: Geometry, out: Sizes) -> PatchRows:
        places, starts, sizes = lay_out(geometry, image.space, out, image.channels // image.groups)
        return PatchRows(places, starts, *sizes)

    @property
    def padded(self) -> int:
        return -(-self.length // PADDING) * PADDING

    def describe(self, image: Image, channels: int, places: int) -> np.ndarray:
        """In the order of square_convolution in columns.h."""
        sizes = [image.groups, channels // image.groups, image.size, places]
        return np.array([*sizes, len(self.starts), self.rows, self.step, self.length, self.padded])


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
    columns: Tensor, where: Tensor | None, image: Image, geometry: Geometry, out: Sizes, signs: Tensor | None = None
) -> Squared | None:
    """Of ``g_vn[o, c, k] = sum_s columns_vn[o, s] image_n[c, patch(k, s)]``, ``out`` the convolution's output sizes:
    ``sum_vn signs_vn g_vn^2``, signs [V, n].

    None if the image is not finite (0 * inf is NaN, which a kernel that skips zeros does not see), or if it is too
    large.
    """
    pieces: list[Squared] = []
    for some in _several(columns):
        part = _walk(columns[some], where, image, geometry, out, None if signs is None else signs[some])
        if part is None:
            return None
        pieces.append(part)
    if len(pieces) == 1:
        return pieces[0]
    squares, norms = (torch.stack(parts).sum(0) for parts in zip(*((f.squares, f.norms) for f in pieces), strict=True))
    return Squared(squares, norms, torch.cat([f.sums for f in pieces]))


def sum_column(
    column: Tensor, where: Tensor | None, image: Image, geometry: Geometry, out: Sizes
) -> tuple[Tensor, Tensor] | None:
    """``sum_n g_n`` of one column [n, rows, *places], and its sums over samples and places: the gradients of weight and
    bias. None if the image is not finite."""
    squared = _walk(column.unsqueeze(0), where, image, geometry, out, None, squares=False)
    return None if squared is None else (squared.squares, squared.sums.sum((0, 1)))


def _walk(
    columns: Tensor, where: Tensor | None, image: Image, geometry: Geometry, out: Sizes, signs: Tensor | None,
    squares: bool = True,
) -> Squared | None:  # fmt: skip
    _check_where(where, columns, out)
    shape = (columns.shape[2], image.channels // image.groups, *geometry[0])
    image.check(columns, geometry, out, shape)
    if not columns.numel() or not image.size or image.size * image.groups > LARGEST:
        return None
    flat, apart = _flat(columns)
    number, samples, channels, places = flat.shape
    rows = PatchRows.of(image, geometry, out)
    sizes = rows.describe(image, channels, places)
    signs = None if signs is None else signs.T.to(flat.dtype).contiguous()
    sums, norms = flat.new_zeros(samples, channels, number), torch.zeros(samples, dtype=torch.float64)
    kernel, each = _kernel("square_convolution", flat.dtype), flat.element_size()

    def run(low: int, high: int) -> tuple[int, Tensor]:
        total = flat.new_zeros(channels, len(rows.starts), rows.rows, rows.padded)
        weights, looked_at = flat.new_empty(places * number), np.empty(places, np.int32)
        broken = kernel(
            image.buffer.data_ptr() + low * image.groups * image.size * each,
            flat.data_ptr() + low * flat.stride(1) * each,
            0 if where is None else where.data_ptr() + 4 * low * places * channels, high - low, number,
            apart.ctypes.data, sizes.ctypes.data, rows.places.ctypes.data, rows.starts.ctypes.data,
            0 if signs is None else signs.data_ptr() + low * number * each, total.data_ptr(),
            norms.data_ptr() + 8 * low if squares else 0, sums.data_ptr() + low * channels * number * each,
            weights.data_ptr(), looked_at.ctypes.data,
        )  # fmt: skip
        return broken, total

    shares = share(run, cut(samples, flat.numel() * shape[1] * math.prod(shape[2:]), ALONE))
    if any(broken for broken, _ in shares):
        return None
    total = torch.stack([part for _, part in shares]).sum(0) if len(shares) > 1 else shares[0][1]
    added = total[..., : rows.length].reshape(channels, *shape[2:], shape[1]).movedim(-1, 1)
    return Squared(added, norms, sums.permute(2, 0, 1))


# ---- the way forward -------------------------------------------------------------------------------------------------


def gather_columns(
    pairs: list[tuple[Image, Tensor]], where: Tensor, geometry: Geometry, out: Sizes, into: Tensor
) -> Tensor:
    """Convolutions of images (without groups) with weights, added to ``into`` [n, places, rows] where ``where`` is not -1.
    Numbers behind an image's rows must be finite."""
    samples, places, channels = where.shape
    if into.shape != where.shape or not into.is_contiguous():
        raise ValueError(f"a result {tuple(into.shape)} does not fit places {tuple(where.shape)}")
    for image, weight in pairs:
        like = weight.new_empty(()).expand(1, samples, channels, places)
        _check_where(where, like, out)
        image.check(like, geometry, out, tuple(weight.shape))
        if image.groups != 1 or into.dtype != weight.dtype or image.size > LARGEST:
            raise ValueError("only one group, one dtype and images of less than two billion numbers are known")
        rows = PatchRows.of(image, geometry, out)
        filters = weight.new_zeros(channels, len(rows.starts) * rows.rows, rows.padded)
        filters[..., : rows.length] = weight.movedim(1, -1).reshape(channels, -1, rows.length)
        _gather(image, filters, rows, where, into)
    return into


def _gather(image: Image, filters: Tensor, rows: PatchRows, where: Tensor, into: Tensor) -> None:
    samples, places, channels = where.shape
    sizes, each = rows.describe(image, channels, places), filters.element_size()
    kernel = _kernel("gather_convolution", filters.dtype)

    def run(low: int, high: int) -> None:
        first = low * places * channels
        kernel(
            image.buffer.data_ptr() + low * image.size * each, filters.data_ptr(), where.data_ptr() + 4 * first, high - low,
            sizes.ctypes.data, rows.places.ctypes.data, rows.starts.ctypes.data, into.data_ptr() + first * each,
        )  # fmt: skip

    share(run, cut(samples, where.numel() * filters[0].numel(), ALONE))


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

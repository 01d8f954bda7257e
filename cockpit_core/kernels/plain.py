"""Histograms with torch operations only: for every device, and the yardstick for the fused paths.

Scratch memory is bounded by ``BLOCK`` elements whatever the layer's size; nothing of the size of the individual
gradients is stored.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from cockpit_core.kernels.bins import AnyBins, Bins
from cockpit_core.kernels.log_bins import LogBins

BLOCK = 1 << 17  # elements at once, small enough for a CPU's caches
LARGER = 16  # times as many on other devices, where starting an operation costs more than running it

GRADIENT_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def widen(values: Tensor) -> Tensor:
    """To the type in which bins are computed: float64 stays, everything else becomes float32 (exact)."""
    return values if values.dtype == torch.float64 else values.to(torch.float32)


def multiply(b: Tensor, a: Tensor) -> Tensor:
    """``b * a`` rounded to their own type and then widened; a half product is exact in float32 and rounded once."""
    return widen((widen(b) * widen(a)).to(b.dtype))


def categorise(values: Tensor, bins: AnyBins) -> Tensor:
    """The category of each (wide) value, as int32; see ``bins`` and ``log_bins`` for the rules."""
    return categorise_linear(values, bins) if isinstance(bins, Bins) else categorise_logarithmic(values, bins)


def categorise_logarithmic(values: Tensor, bins: LogBins) -> Tensor:
    double = values.dtype == torch.float64
    whole, width, bias = (torch.int64, 52, 1023) if double else (torch.int32, 23, 127)
    bits = values.contiguous().view(whole)
    size = bits & torch.iinfo(whole).max
    mantissa = size & ((1 << width) - 1)
    step = (size >> width).sub_(bins.lowest + bias).mul_(bins.per_octave)
    for limit in bins.thresholds(double):
        step += mantissa >= limit
    step = step.clamp_(-1, bins.steps - 1).add_(1)  # 0 for zero
    category = torch.where(bits < 0, -step, step).add_(bins.steps + 1).to(torch.int32)
    category.masked_fill_(values.isnan(), bins.count + 2)
    category.masked_fill_(values.isposinf(), bins.count + 3)
    return category.masked_fill_(values.isneginf(), bins.count + 4)


def categorise_linear(values: Tensor, bins: Bins) -> Tensor:
    rule = bins.binning(values.dtype == torch.float64)
    first, last = -rule.offset, bins.count - 1 - rule.offset
    if not values.numel():
        return values.to(torch.int32)
    index = values.sub(float(rule.anchor)).mul_(float(rule.scale)).floor_().clamp_(first, last).add_(rule.offset + 1)
    if not values.is_cpu or not _is_within(values, float(rule.low), float(rule.high)):  # a device is not waited for
        index.masked_fill_(values < float(rule.low), 0)
        index.masked_fill_(values > float(rule.high), bins.count + 1)
        index.masked_fill_(values.isnan(), bins.count + 2)
        index.masked_fill_(values.isposinf(), bins.count + 3)
        index.masked_fill_(values.isneginf(), bins.count + 4)
    return index.to(torch.int32)


def _is_within(values: Tensor, low: float, high: float) -> bool:
    smallest, largest = torch.aminmax(values)  # one pass; NaN if there is one, which makes the comparison false
    return bool((smallest >= low) & (largest <= high))


def add_block(values: Tensor, parameter: Tensor | None, gradient: AnyBins, table: Tensor) -> None:
    """Add the wide ``values`` to the table; ``parameter`` holds their parameters' categories (broadcast to them)."""
    index = categorise(values, gradient)
    if parameter is not None:
        index = index.mul_(table.shape[1]).add_(parameter)
    if table.is_cpu:
        table += torch.bincount(index.reshape(-1), minlength=table.numel()).reshape(table.shape)
    else:  # bincount would wait for the device, to know how long its result is
        ones = table.new_ones(()).expand(index.numel())
        table.view(-1).scatter_add_(0, index.reshape(-1).long(), ones)


def count_values(values: Tensor, parameter: Tensor | None, gradient: AnyBins, table: Tensor) -> None:
    """``values`` is [n, D], ``parameter`` [D] categories or None; the table is [categories] or [categories, those of
    the parameter].
    """

    def add(n: slice, d: slice) -> None:
        add_block(widen(values[n, d]), None if parameter is None else parameter[d], gradient, table)

    _in_blocks(values.shape[0], values.shape[1], add, _block_size(values))


def count_outer(b: Tensor, a: Tensor, parameter: Tensor | None, gradient: AnyBins, table: Tensor) -> None:
    """The same over ``b[n, i] * a[n, j]``; ``parameter`` is [out, in] or None. Products exist one block at a time."""
    out, inner = b.shape[1], a.shape[1]
    block = _block_size(b)
    rows = max(1, min(out, block // inner))
    for start in range(0, out, rows):
        i = slice(start, start + rows)

        def add(n: slice, j: slice, i: slice = i) -> None:
            products = multiply(b[n, i, None], a[n, None, j])
            add_block(products, None if parameter is None else parameter[i, j], gradient, table)

        _in_blocks(b.shape[0], inner, add, block // rows)


def _block_size(values: Tensor) -> int:
    return BLOCK if values.device.type == "cpu" else LARGER * BLOCK


def _in_blocks(samples: int, columns: int, add: Callable[[slice, slice], None], block: int) -> None:
    width = max(1, min(columns, block))
    height = max(1, block // width)
    for n in range(0, samples, height):
        for d in range(0, columns, width):
            add(slice(n, n + height), slice(d, d + width))

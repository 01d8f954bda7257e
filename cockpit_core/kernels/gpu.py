"""Histograms on a GPU by one Triton kernel, for stored values and for outer products, in 1D and 2D.

Most gradients fall into one or two bins, and a GPU that adds them up one atomic at a time waits for itself. So each
program owns a tile of elements, walks over samples, and keeps how often each element fell into one of eight *hot*
categories in registers; at the end it adds them up per parameter bin and needs one atomic per sum. Only the other,
cold values use an atomic each, spread over ``COPIES`` tables.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from cockpit_core.kernels.bins import AnyBins
from cockpit_core.kernels.log_bins import LogBins

TILE = 256  # elements per program
ROWS = 32  # samples per program
COPIES = 16  # tables for the cold values
HOT = 8


@triton.jit
def _find_logarithmic(v, limits, PER_OCTAVE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Whole-number arithmetic on the bits; ``limits``: lowest exponent (biased), bins of one sign, then mantissas."""
    if v.dtype == tl.float64:
        bits = v.to(tl.int64, bitcast=True)
        size = bits & 0x7FFFFFFFFFFFFFFF
        exponent, mantissa = size >> 52, size & 0xFFFFFFFFFFFFF
    else:
        bits = v.to(tl.int32, bitcast=True).to(tl.int64)
        size = bits & 0x7FFFFFFF
        exponent, mantissa = size >> 23, size & 0x7FFFFF
    steps = tl.load(limits + 1)
    step = (exponent - tl.load(limits)) * PER_OCTAVE
    for k in range(PER_OCTAVE - 1):
        step += (mantissa >= tl.load(limits + 2 + k)).to(tl.int64)
    step = tl.minimum(tl.maximum(step, -1), steps - 1) + 1
    c = steps + 1 + tl.where(bits < 0, -step, step)
    above = 2 * steps + 2
    c = tl.where(v != v, above + 1, c)
    c = tl.where(v == float("inf"), above + 2, c)
    c = tl.where(v == float("-inf"), above + 3, c)
    return c.to(tl.int32)


@triton.jit
def _find_category(v, anchor, scale, low, high, first, last, shift, above):  # type: ignore[no-untyped-def]
    t = (v - anchor) * scale
    t = tl.minimum(tl.maximum(t, first), last)
    t = tl.where(t == t, t, first)  # so that NaN never becomes an integer
    whole = t.to(tl.int32).to(v.dtype)
    t = tl.where(whole > t, whole - 1, whole) + shift  # tl.floor would take a subnormal for zero on a GPU
    t = tl.where(v < low, above * 0, t)
    t = tl.where(v > high, above, t)
    t = tl.where(v != v, above + 1, t)
    t = tl.where(v == float("inf"), above + 2, t)
    t = tl.where(v == float("-inf"), above + 3, t)
    return t.to(tl.int32)


@triton.jit
def _round_to_bfloat16(x):  # type: ignore[no-untyped-def]
    # To nearest even, on the bits: Triton's interpreter and old GPUs would cut off instead.
    bits = x.to(tl.int32, bitcast=True)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) & -65536).to(tl.float32, bitcast=True)
    return tl.where((bits & 0x7FFFFFFF) < 0x7F800000, rounded, x)


@triton.jit
def _load_value(left, right, n, e, elements, inner, inside, OUTER: tl.constexpr, WIDE: tl.constexpr):  # type: ignore[no-untyped-def]
    row = e * 0 + n  # in 64 bits, as e is: n * elements may pass 2**31
    if OUTER:
        b = tl.load(left + row * (elements // inner) + e // inner, mask=inside, other=0)
        a = tl.load(right + row * inner + e % inner, mask=inside, other=0)
        product = b.to(WIDE) * a.to(WIDE)
        if b.dtype == tl.bfloat16:
            return _round_to_bfloat16(product)
        return product.to(b.dtype).to(WIDE)  # rounds to float16; does nothing for float32 and float64
    return tl.load(left + row * elements + e, mask=inside, other=0).to(WIDE)


@triton.jit
def _count(  # type: ignore[no-untyped-def]
    left, right, parameter, constants, limits, hottest, table, samples, elements, inner, categories,
    OUTER: tl.constexpr, WIDE: tl.constexpr, PARAMETERS: tl.constexpr, PER_OCTAVE: tl.constexpr,
    TILE: tl.constexpr, ROWS: tl.constexpr, COPIES: tl.constexpr, HOT: tl.constexpr,
):  # fmt: skip
    start = tl.program_id(0).to(tl.int64) * TILE
    e = start + tl.arange(0, TILE)
    inside = e < elements
    first = tl.program_id(1) * ROWS
    last = tl.minimum(first + ROWS, samples)
    p = tl.zeros([TILE], tl.int32)
    if PARAMETERS > 1:
        p = tl.load(parameter + e, mask=inside, other=0).to(tl.int32)
    copy = table + (tl.program_id(0) + tl.program_id(1)) % COPIES * categories * PARAMETERS

    # The rule comes as a tensor because scalar arguments would be rounded to float32.
    anchor, scale = tl.load(constants), tl.load(constants + 1)
    low, high = tl.load(constants + 2), tl.load(constants + 3)
    lowest, highest = tl.load(constants + 4), tl.load(constants + 5)
    shift, above = tl.load(constants + 6), tl.load(constants + 7)

    # The last slot is this tile's own guess, the category of its first value, unless it is in the list already.
    slot = tl.arange(0, HOT)
    hot = tl.load(hottest + slot)
    one = start + tl.zeros([HOT], tl.int64)
    guess = _load_value(left, right, first, one, elements, inner, one < elements, OUTER, WIDE)
    if PER_OCTAVE > 0:
        guessed = _find_logarithmic(guess, limits, PER_OCTAVE)
    else:
        guessed = _find_category(guess, anchor, scale, low, high, lowest, highest, shift, above)
    own = tl.max(guessed, axis=0)
    known = tl.max((hot == own).to(tl.int32), axis=0)
    hot = tl.where((slot == HOT - 1) & (known == 0), own, hot)

    times = tl.zeros([HOT, TILE], tl.int32)
    for n in range(first, last):
        value = _load_value(left, right, n, e, elements, inner, inside, OUTER, WIDE)
        if PER_OCTAVE > 0:
            category = _find_logarithmic(value, limits, PER_OCTAVE)
        else:
            category = _find_category(value, anchor, scale, low, high, lowest, highest, shift, above)
        match = ((hot[:, None] == category[None, :]) & inside[None, :]).to(tl.int32)
        times += match
        cold = inside & (tl.sum(match, axis=0) == 0)
        ones = tl.full([TILE], 1, tl.int64)
        tl.atomic_add(copy + category * PARAMETERS + p, ones, mask=cold, sem="relaxed")
    for q in range(PARAMETERS):
        total = tl.sum(tl.where((p == q)[None, :], times, 0), axis=1).to(tl.int64)
        tl.atomic_add(copy + hot * PARAMETERS + q, total, mask=(hot >= 0) & (total > 0), sem="relaxed")


@lru_cache(maxsize=64)
def _constants(bins: AnyBins, double: bool, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """The constants of the rule for even bins in its type and of that for logarithmic ones in whole numbers, and the categories
    that are hot in most runs: next to zero, outside, not finite.
    """
    kind = torch.float64 if double else torch.float32
    numbers, limits, above = [0.0] * 8, [0], bins.count + 1
    if isinstance(bins, LogBins):
        limits = [bins.lowest + (1023 if double else 127), bins.steps, *bins.thresholds(double)]
    else:
        rule = bins.binning(double)
        first, last, shift = -rule.offset, bins.count - 1 - rule.offset, rule.offset + 1
        numbers = [float(x) for x in (rule.anchor, rule.scale, rule.low, rule.high, first, last, shift, above)]
    next_to_zero = {bins.category(x, double) for x in (-float(torch.finfo(kind).tiny), 0.0)}
    hot = sorted(next_to_zero | {0, above, above + 1, above + 2, above + 3})
    hot += [-1] * (HOT - len(hot))
    return (
        torch.tensor(numbers, dtype=kind, device=device),
        torch.tensor(limits, dtype=torch.int64, device=device),
        torch.tensor(hot[:HOT], dtype=torch.int32, device=device),
    )


def _launch(left: Tensor, right: Tensor, parameter: Tensor | None, inner: int, bins: AnyBins, table: Tensor) -> None:
    outer = right is not left
    samples, elements = left.shape[0], left.shape[1] * (inner if outer else 1)
    double = left.dtype == torch.float64
    constants, limits, hot = _constants(bins, double, left.device)
    copies = torch.zeros((COPIES, *table.shape), dtype=torch.int64, device=left.device)
    options: dict[str, Any] = {
        "OUTER": outer, "WIDE": tl.float64 if double else tl.float32,
        "PARAMETERS": 1 if parameter is None else table.shape[1],
        "PER_OCTAVE": bins.per_octave if isinstance(bins, LogBins) else 0,
        "TILE": TILE, "ROWS": ROWS, "COPIES": COPIES, "HOT": HOT,
    }  # fmt: skip
    grid = (triton.cdiv(elements, TILE), triton.cdiv(samples, ROWS))
    bins_of = hot if parameter is None else parameter.contiguous()
    # Without enable_fp_fusion=False the product and the subtraction could become one operation with one rounding.
    with torch.cuda.device_of(left):  # Triton launches on the current device, whichever holds the tensors
        _count[grid](
            left, right, bins_of, constants, limits, hot, copies, samples, elements, inner, table.shape[0],
            **options, enable_fp_fusion=False,
        )  # fmt: skip
    table += copies.sum(0)


def count_values(values: Tensor, parameter: Tensor | None, gradient: AnyBins, table: Tensor) -> None:
    """``values`` is [n, D], ``parameter`` [D] categories or None."""
    values = values.contiguous()
    _launch(values, values, parameter, 1, gradient, table)


def count_outer(b: Tensor, a: Tensor, parameter: Tensor | None, gradient: AnyBins, table: Tensor) -> None:
    """The products ``b[n, i] * a[n, j]``; ``parameter`` is [out, in] or None."""
    b, a = b.contiguous(), a.contiguous()
    _launch(b, a if a is not b else a.clone(), parameter, a.shape[1], gradient, table)

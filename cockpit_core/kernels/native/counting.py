"""Histograms by the native kernels: stored values and products that are never stored, in 1D and 2D."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from cockpit_core.kernels.bins import AnyBins
from cockpit_core.kernels.log_bins import LogBins
from cockpit_core.kernels.native import Library, find_library, open_level
from cockpit_core.kernels.native.reducing import TABLES, find_rule, pointer_of, reduce_block
from cockpit_core.kernels.plain import widen
from cockpit_core.kernels.threads import cut, share

BLOCK = 1 << 20  # elements of a half type that are widened at once, and factors whose signs are written down at once
ALONE = 1 << 19  # elements: less work than this is not worth waking a thread
ROUNDING = {torch.bfloat16: 1, torch.float16: 2}


def _library() -> Library:
    library = find_library()
    if library is None:
        raise RuntimeError("the native kernels are missing: reinstall, or use another path")
    return library


def _dense(values: Tensor) -> Tensor:
    """Widened, with rows whose elements lie side by side."""
    values = widen(values)
    return values if values.stride(1) == 1 and values.stride(0) >= 0 else values.contiguous()


def count_values(values: Tensor, parameter: Tensor | None, gradient: AnyBins, table: Tensor) -> None:
    """``values`` is [n, D], ``parameter`` [D] categories or None."""
    _library()
    rows = values.shape[0] if values.dtype not in ROUNDING else max(1, BLOCK // values.shape[1])
    small = None if parameter is None else parameter.to(torch.int16).contiguous()
    into = table.numpy()
    for start in range(0, values.shape[0], rows):
        block = _dense(values[start : start + rows])
        if small is None:
            counts = reduce_block(block, None, 1.0, gradient).counts
            assert counts is not None
            table += counts
        else:
            into += _count_pairs(block, small, gradient, tuple(table.shape))


def _add_up(run: Callable[[int, int, int], None], bounds: list[tuple[int, int]], shape: tuple[int, ...]) -> np.ndarray:
    """Each part counts into a table of its own, whose address it is given; their sum."""

    def count(low: int, high: int) -> np.ndarray:
        own = torch.zeros(shape, dtype=torch.int64)  # torch tells an address in a tenth of numpy's time
        run(low, high, own.data_ptr())
        return own.numpy()

    tables = share(count, bounds)
    return tables[0] if len(tables) == 1 else np.sum(tables, axis=0)


def _count_pairs(values: Tensor, parameter: Tensor, gradient: AnyBins, shape: tuple[int, ...]) -> np.ndarray:
    kernel, (rule, _) = _library().function("count_pairs", values.dtype), find_rule(gradient, values.dtype)

    def run(low: int, high: int, own: int) -> None:
        kernel(
            values.data_ptr() + low * values.element_size(), values.stride(0), len(values), high - low,
            parameter.data_ptr() + low * 2, pointer_of(rule), own, shape[1],
        )  # fmt: skip

    return _add_up(run, cut(values.shape[1], values.numel(), ALONE), shape)


def count_outer(b: Tensor, a: Tensor, parameter: Tensor | None, gradient: AnyBins, table: Tensor) -> None:
    """The products ``b[n, i] * a[n, j]``; ``parameter`` is [out, in] or None."""
    kind = ROUNDING.get(b.dtype, 0)
    if a.shape[1] < b.shape[1] and (parameter is None or a.shape[1] < 64):  # the kernels want the longer side as ``a``
        b, a, parameter = a, b, None if parameter is None else parameter.t()
    b, a = widen(b).contiguous(), widen(a).contiguous()
    into = table.numpy()
    if parameter is None:
        into += _count_outer(b, a, kind, gradient)
        return
    small = parameter.to(torch.int16).contiguous()
    samples = max(1, BLOCK // a.shape[1])
    for start in range(0, len(b), samples):
        part = slice(start, start + samples)
        into += _count_outer_pairs(b[part], a[part], kind, small, gradient, tuple(table.shape))


@lru_cache(maxsize=32)
def describe_products(bins: LogBins, kind: int, level: str) -> np.ndarray:
    """Which pairs of mantissas give which bin, once for these bins."""
    describe, (rule, _) = open_level(level).function("describe_products", torch.float32), find_rule(bins, torch.float32)
    memory = np.empty(describe(0, kind, 0) // 8 + 1, np.int64)
    describe(pointer_of(rule), kind, memory.ctypes.data)
    return memory


def describe_outer(dtype: torch.dtype, kind: int, gradient: AnyBins) -> tuple[Tensor | None, int, np.ndarray | None]:
    """What the kernel wants to know of these bins: the rule, how many categories there are, and what products give which bin.
    Whoever passes addresses on holds these until then."""
    rule, size = find_rule(gradient, dtype)
    wanted = isinstance(gradient, LogBins) and dtype == torch.float32
    return rule, size, describe_products(gradient, kind, _library().level) if wanted else None


def _count_outer(b: Tensor, a: Tensor, kind: int, gradient: AnyBins) -> np.ndarray:
    kernel, (rule, size, runs) = _library().function("count_outer", b.dtype), describe_outer(b.dtype, kind, gradient)
    out, inner, each = b.shape[1], a.shape[1], b.element_size()

    def run(low: int, high: int, own: int) -> None:
        memory = torch.empty(3 * (inner + 16), dtype=torch.float64)  # to sort a row of factors in
        later = torch.empty(out, dtype=torch.int32)
        kernel(
            b.data_ptr() + low * out * each, a.data_ptr() + low * inner * each, high - low, out, inner, kind,
            pointer_of(rule), own, size, memory.data_ptr(), later.data_ptr(),
            0 if runs is None else runs.ctypes.data,
        )  # fmt: skip

    return _add_up(run, cut(len(b), len(b) * b.shape[1] * a.shape[1], ALONE), (TABLES, size)).sum(0)


def _count_outer_pairs(
    b: Tensor, a: Tensor, kind: int, parameter: Tensor, gradient: AnyBins, shape: tuple[int, ...]
) -> np.ndarray:
    library, (rule, _) = _library(), find_rule(gradient, b.dtype)
    kernel, describe = library.function("count_outer_pairs", b.dtype), library.function("describe_rows", b.dtype)
    samples, inner = a.shape
    signs = np.empty(describe(0, samples, inner, 0) // 8 + 1, np.int64)
    describe(a.data_ptr(), samples, inner, signs.ctypes.data)

    def run(low: int, high: int, own: int) -> None:
        kernel(
            b.data_ptr(), a.data_ptr(), samples, b.shape[1], inner, kind, parameter.data_ptr(), pointer_of(rule), own,
            shape[1], low, high, signs.ctypes.data,
        )  # fmt: skip

    return _add_up(run, cut(b.shape[1], b.numel() * inner, ALONE), shape)

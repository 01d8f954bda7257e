"""Histograms on the CPU by fused loops (numba), in threads of our own; needs the optional package numba."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cockpit_core.kernels import loops
from cockpit_core.kernels.bins import Bins
from cockpit_core.kernels.plain import widen

BLOCK = 1 << 20  # elements of a half type that are widened at once
ALONE = 1 << 15  # less work than this is not worth waking a thread
ROUNDING = {torch.bfloat16: 1, torch.float16: 2}

_pool: ThreadPoolExecutor | None = None
_pool_size = 0
_told = False


def _forget_pool() -> None:
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):  # the threads do not survive a fork; the child makes its own
    os.register_at_fork(after_in_child=_forget_pool)


def _threads() -> ThreadPoolExecutor:
    global _pool, _pool_size
    wanted = torch.get_num_threads()
    if _pool is None or _pool_size < wanted:
        _pool, _pool_size = ThreadPoolExecutor(wanted, thread_name_prefix="cockpit-histogram"), wanted
    return _pool


def _announce(loop: Any) -> None:
    """The first call of a loop compiles it, once per installation: whoever waits for seconds is told what for."""
    global _told
    if _told or getattr(loop, "signatures", True):
        return
    folder = Path(loop.stats.cache_path or ".")
    if not any(folder.glob(f"loops.{loop.__name__}-*.nbi")):
        _told = True
        print("Cockpit: compiling its histogram loops, once per installation (about 20 s) ...", file=sys.stderr)


def _share(loop: Any, inputs: tuple[Any, ...], length: int, elements: int, table: Tensor) -> None:
    """Run the loop over ``range(length)``, split among torch's number of threads.

    Each part counts into tables of its own; ``table`` is touched only when all have succeeded.
    """
    parts = max(1, min(torch.get_num_threads(), length, elements // ALONE))
    bounds = [length * k // parts for k in range(parts + 1)]
    shape = (2, table.shape[0], table.shape[1] if table.dim() == 2 else 1)
    tables = np.zeros((parts, *shape), np.int64)
    found = np.empty((parts, loops.CHUNK), np.uint8 if shape[1] <= 256 else np.uint16)

    def run(part: int) -> None:
        loop(*inputs, found[part], bounds[part], bounds[part + 1], tables[part])

    _announce(loop)
    others = [_threads().submit(run, part) for part in range(1, parts)]
    try:
        run(0)
    finally:
        for other in others:
            other.result()
    table += torch.from_numpy(tables.sum(axis=(0, 1)).reshape(tuple(table.shape)))


def constants(bins: Bins, double: bool) -> tuple[Any, ...]:
    """The rule as the loops take it, all in one type: what the names in ``loops.find_category`` say."""
    rule = bins.rule(double)
    kind = type(rule.scale)
    first, last, shift, above = -rule.offset, bins.count - 1 - rule.offset, rule.offset + 1, bins.count + 1
    bounds = (rule.anchor, rule.scale, rule.low, rule.high)
    return (*bounds, kind(first), kind(last), kind(shift), kind(above), kind(np.inf))


def _array(tensor: Tensor) -> np.ndarray:
    return widen(tensor).contiguous().numpy()


def count_values(values: Tensor, parameter: Tensor | None, gradient: Bins, table: Tensor) -> None:
    """``values`` is [n, D], ``parameter`` [D] categories or None."""
    rule = constants(gradient, values.dtype == torch.float64)
    bins = np.zeros(values.shape[1], np.uint8) if parameter is None else parameter.contiguous().numpy()
    rows = values.shape[0] if values.dtype not in ROUNDING else max(1, BLOCK // values.shape[1])
    for start in range(0, values.shape[0], rows):
        block = _array(values[start : start + rows])
        _share(loops.count_values, (block, bins, rule), block.shape[1], block.size, table)


def count_outer(b: Tensor, a: Tensor, parameter: Tensor | None, gradient: Bins, table: Tensor) -> None:
    """The products ``b[n, i] * a[n, j]``; ``parameter`` is [out, in] or None."""
    if a.shape[1] < b.shape[1] and (parameter is None or a.shape[1] < 64):  # the loops want the longer side as ``a``
        b, a, parameter = a, b, None if parameter is None else parameter.t()
    bins = None if parameter is None else parameter.contiguous().numpy()
    kind = ROUNDING.get(b.dtype, 0)
    samples = max(1, BLOCK // a.shape[1])  # bounds the memory for sorting
    for start in range(0, b.shape[0], samples):
        left, right = _array(b[start : start + samples]), _array(a[start : start + samples])
        if bins is None:
            _count_outer1d(left, right, kind, gradient, table)
        else:
            _count_outer2d(left, right, kind, bins, gradient, table)


def _count_outer1d(b: np.ndarray, a: np.ndarray, kind: int, gradient: Bins, table: Tensor) -> None:
    nothing = np.zeros(a.shape[1], np.uint8)
    inputs = (b, np.sort(a, axis=1), nothing, kind, constants(gradient, b.dtype == np.float64))
    _share(loops.count_outer1d, inputs, b.shape[0], b.size * a.shape[1], table)


def _count_outer2d(
    b: np.ndarray, a: np.ndarray, kind: int, parameter: np.ndarray, gradient: Bins, table: Tensor
) -> None:
    double = b.dtype == np.float64
    tiny = float(np.finfo(b.dtype).tiny)
    hot = (np.int32(gradient.category(-tiny, double)), np.int32(gradient.category(0.0, double)))
    inputs = (b, a, *_prepare(a), kind, constants(gradient, double), hot, parameter)
    _share(loops.count_outer2d, inputs, b.shape[1], b.size * a.shape[1], table)


def _prepare(a: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sign masks [2, n, in], the order that sorts each row, and its least nonzero magnitude (NaN if not finite)."""
    masks = np.stack([a < 0, a > 0]).view(np.uint8)
    smallest = np.where(a == 0, np.asarray(np.inf, a.dtype), np.abs(a)).min(axis=1)
    smallest[np.isinf(smallest)] = 1  # all zero: every product is an exact zero
    smallest[~np.isfinite(a).all(axis=1)] = np.nan
    return masks, _order(a), smallest


def _order(a: np.ndarray) -> np.ndarray:
    """What ``argsort`` gives, several times faster for float32: sort whole numbers of (value, index).

    The bits of a float32, read as an integer and with the magnitude of negative ones turned round, are in its order.
    """
    if a.dtype == np.float64 or a.shape[1] >= 1 << 31:
        return np.argsort(a, axis=1)
    bits = a.view(np.int32)
    keys = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).astype(np.int64)
    keys <<= 32
    keys |= np.arange(a.shape[1])
    keys.sort(axis=1)
    keys &= 0xFFFFFFFF
    return keys

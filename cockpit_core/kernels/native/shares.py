"""Sums over the second moments of all parameters of an adaptive optimizer, in one walk."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from cockpit_core.kernels.native import find_library
from cockpit_core.kernels.threads import cut, share

LARGEST = 2**16
"""Elements of one job, so that threads can share large tensors."""


def sum_shares(moments: Sequence[tuple[Tensor, float, float]]) -> list[float]:
    """``sum of eps / (sqrt(v) * factor + eps)`` for each (v, factor, eps); v is contiguous, in one of the kernels' types."""
    if not all(v.is_contiguous() for v, _, _ in moments):
        raise ValueError("second moments that are walked through are contiguous")
    sums = np.zeros(len(moments))
    for dtype in {v.dtype for v, _, _ in moments}:
        _add_shares([(k, *own) for k, own in enumerate(moments) if own[0].dtype == dtype and own[2] > 0], dtype, sums)
    return sums.tolist()


def _add_shares(moments: Sequence[tuple[int, Tensor, float, float]], dtype: torch.dtype, sums: np.ndarray) -> None:
    library = find_library()
    assert library is not None
    owners, jobs, given = list[int](), list[tuple[int, int]](), list[tuple[float, float]]()
    for k, v, factor, eps in moments:
        size, start, each = v.numel(), v.data_ptr(), v.element_size()
        for low in range(0, size, LARGEST):
            owners.append(k)
            jobs.append((start + low * each, min(LARGEST, size - low)))
            given.append((factor, eps))
    if not jobs:
        return
    kernel, places, factors = library.function("sum_shares", dtype), np.array(jobs, np.int64), np.array(given)
    parts = np.zeros(len(jobs))

    def run(low: int, high: int) -> None:
        own = places[low:high], factors[low:high], parts[low:high]
        kernel(own[0].ctypes.data, own[1].ctypes.data, high - low, own[2].ctypes.data)

    share(run, cut(len(jobs), sum(size for _, size in jobs), 2 * LARGEST))
    np.add.at(sums, owners, parts)

"""A layer with one position per sample: norms, and of few outputs also up to two projections and counts of its individual
gradients, with one call in which threads share the samples."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cockpit_core.kernels.bins import AnyBins
from cockpit_core.kernels.native import find_library
from cockpit_core.kernels.native.counting import prepare_outer
from cockpit_core.kernels.native.reducing import MOST_DIRECTIONS, TABLES, Reduced, can_reduce
from cockpit_core.kernels.threads import cut, share

ALONE = 1 << 19
"""Elements of individual gradients: less work than this is not worth waking a thread."""


def can_reduce_outer(b: Tensor, a: Tensor, directions: Sequence[Tensor]) -> bool:
    """Of one type, on the host, with something in them, and as large as a direction."""
    if not can_reduce(b, len(directions)) or a.dtype != b.dtype or not a.is_cpu:
        return False
    size = b.shape[1] * a.shape[1]
    return b.shape[0] * size > 0 and all(d.dtype == b.dtype and d.is_cpu and d.numel() == size for d in directions)


def reduce_outer(b: Tensor, a: Tensor, directions: Sequence[Tensor], bins: AnyBins | None) -> Reduced:
    """Of ``b_n a_n^T``: b [n, out], a [n, in], each direction out * in numbers in the order of the weight."""
    library = find_library()
    if library is None or not can_reduce_outer(b, a, directions) or len(b) != len(a):
        raise ValueError("factors and directions that are reduced together have one dtype, and fit each other")
    b, a, along = b.contiguous(), a.contiguous(), [d.contiguous() for d in directions]
    (samples, out), inner, each = b.shape, a.shape[1], b.element_size()
    norms, dots = torch.empty(samples, dtype=torch.float64), torch.empty(samples, 2, dtype=torch.float64)
    pointers = [*(d.data_ptr() for d in along), *[0] * (MOST_DIRECTIONS - len(along))]
    kernel, first, second = library.function("reduce_outer", b.dtype), b.data_ptr(), a.data_ptr()
    to_norms, to_dots = norms.data_ptr(), dots.data_ptr()
    count, size = (None, 0) if bins is None else prepare_outer(b, a, 0, bins)

    def run(low: int, high: int) -> Tensor | None:
        own = first + low * out * each, second + low * inner * each, high - low, out, inner
        kernel(*own, *pointers, to_norms + 8 * low, to_dots + 16 * low)
        if count is None:
            return None
        table = torch.zeros(TABLES, size, dtype=torch.int64)
        count(low, high, table.data_ptr())
        return table

    each_sample = out * inner if along or count is not None else out + inner
    tables = share(run, cut(samples, samples * each_sample, ALONE))
    total = tables[0]
    for other in tables[1:]:
        total = total if total is None or other is None else total.add_(other)
    return Reduced(norms, dots, None if total is None else total.sum(0))

"""A layer with one position per sample: norms, and of few outputs also up to two projections and counts of its individual
gradients, with one call in which threads share the samples."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

from cockpit_core.kernels.bins import AnyBins
from cockpit_core.kernels.native import find_library
from cockpit_core.kernels.native.counting import describe_outer
from cockpit_core.kernels.native.reducing import MOST_DIRECTIONS, TABLES, Reduced, can_reduce, pointer_of
from cockpit_core.kernels.native.walking import list_items, walk
from cockpit_core.kernels.threads import cut

ALONE = 1 << 18
"""Elements of individual gradients: less work than this is not worth waking a thread."""
PARTS = 4
"""Pieces of the work for each thread: one that comes late does fewer."""
SIDE = 64
"""Bytes: what a thread writes begins at a line of the cache of its own."""
NO_SCALES = array("d", [0.0])


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
    (samples, out), inner = b.shape, a.shape[1]
    norms, dots = torch.empty(samples, dtype=torch.float64), torch.empty(samples, 2, dtype=torch.float64)
    threads = len(cut(samples, samples * (out * inner if along or bins is not None else out + inner), ALONE))
    rule, size, runs = (None, 0, None) if bins is None else describe_outer(b.dtype, 0, bins)
    tables = SIDE * -(-TABLES * size * 8 // SIDE)  # of one thread, in bytes; then what a kernel sorts in
    spare = 0 if bins is None else SIDE * -(-(24 * (inner + 16) + 4 * out) // SIDE) + 2 * SIDE
    room = torch.zeros(threads, (tables + spare) // 8, dtype=torch.int64)
    pointers = [*(d.data_ptr() for d in along), *[0] * (MOST_DIRECTIONS - len(along))]
    planned = 0 if runs is None else runs.ctypes.data
    job = array("q", (b.data_ptr(), a.data_ptr(), out, inner, *pointers, pointer_of(rule), 0, size, planned))
    each = samples if threads == 1 else max(1, samples // (PARTS * threads))
    walk(
        "walk_outer", b.dtype, list_items([samples], [each]), job, NO_SCALES, threads,
        norms.data_ptr(), dots.data_ptr(), room.data_ptr(), tables + spare,
    )  # fmt: skip
    counts = None if bins is None else room[:, : TABLES * size].reshape(-1, size).sum(0)
    return Reduced(norms, dots, counts)

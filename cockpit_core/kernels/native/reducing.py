"""One pass over the individual gradients of a block, or of a convolution that never stores them: norms, up to two
projections, and counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from cockpit_core.kernels.bins import GRADIENT_EXTRA, Bins
from cockpit_core.kernels.native import TYPES, find_library
from cockpit_core.kernels.threads import cut, share

ALONE = 1 << 16  # elements: less work than this is not worth waking a thread
MOST_DIRECTIONS = 2


@dataclass
class Reduced:
    """``norms`` [n] are ``||g_n||^2``, ``dots`` [n, 2] the projections, both float64; ``counts`` is a table like that of
    ``Counts``."""

    norms: Tensor
    dots: Tensor
    counts: Tensor | None = None


@lru_cache(maxsize=64)
def describe_rule(bins: Bins, double: bool) -> np.ndarray:
    """The rule's constants in the order of ``read_rule`` in body.h."""
    rule = bins.rule(double)
    inner = bins.zero_edge is not None and 2 <= rule.offset <= rule.count - 2
    numbers = [0.0, rule.anchor, rule.scale, rule.low, rule.high, rule.offset, rule.count, 1.0 if inner else 0.0]
    return np.array([*numbers, *[0.0] * 11], np.float64)


def can_reduce(like: Tensor, directions: int) -> bool:
    """On this device, of this dtype, with so many directions."""
    plain = like.device.type == "cpu" and like.dtype in TYPES
    return plain and directions <= MOST_DIRECTIONS and find_library() is not None


class Share:
    """What one thread adds to."""

    def __init__(self, samples: int, counts: bool, size: int):
        self.norms, self.dots = np.zeros(samples), np.zeros((samples, 2))
        self.table = np.zeros((2, size), np.int64) if counts else None

    @property
    def table_pointer(self) -> int:
        return 0 if self.table is None else self.table.ctypes.data


def find_rule(bins: Bins | None, dtype: torch.dtype) -> tuple[int, int]:
    """Where the rule's constants lie, and how many categories there are."""
    if bins is None:
        return 0, 0
    return describe_rule(bins, dtype == torch.float64).ctypes.data, bins.count + GRADIENT_EXTRA


def add_up(shares: Sequence[Share]) -> Reduced:
    tables = [share.table for share in shares if share.table is not None]
    counts = torch.from_numpy(np.sum(tables, axis=(0, 1))) if tables else None
    norms, dots = (np.sum([getattr(share, name) for share in shares], axis=0) for name in ("norms", "dots"))
    return Reduced(torch.from_numpy(norms), torch.from_numpy(dots), counts)


def reduce_block(G: Tensor, directions: Tensor | None, scale: float, bins: Bins | None) -> Reduced:
    """Of ``scale * G`` [n, D], whose rows are dense; ``directions`` is [k, D], k at most 2."""
    library = find_library()
    assert library is not None
    kernel = library.function("reduce_block", G.dtype)
    rows, columns = G.shape
    number = 0 if directions is None else len(directions)
    start, along = G.data_ptr(), 0 if directions is None else directions.data_ptr()
    (rule, size), each = find_rule(bins, G.dtype), G.element_size()
    by_rows = rows >= torch.get_num_threads() > 1 or columns < rows

    def run(low: int, high: int) -> Share:
        found = Share(rows, bins is not None, size)
        first, count = (low, high - low) if by_rows else (0, rows)
        shift, width = (0, columns) if by_rows else (low, high - low)
        kernel(
            start + (first * G.stride(0) + shift) * each, G.stride(0), count, width, scale, along + shift * each,
            columns, number, rule, found.table_pointer, size,
            found.norms.ctypes.data + 8 * first, found.dots.ctypes.data + 16 * first,
        )  # fmt: skip
        return found

    if not G.numel():
        return add_up([Share(rows, bins is not None, size)])
    return add_up(share(run, cut(rows if by_rows else columns, G.numel(), ALONE)))

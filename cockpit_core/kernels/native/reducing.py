"""One pass over the individual gradients of a block, or of a convolution that never stores them: norms, up to two
projections, and counts.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from cockpit_core.kernels.bins import GRADIENT_EXTRA, AnyBins
from cockpit_core.kernels.log_bins import LogBins
from cockpit_core.kernels.native import TYPES, find_library
from cockpit_core.kernels.threads import cut, share

ALONE = 1 << 16  # elements: less work than this is not worth waking a thread
MOST_DIRECTIONS = 2
TABLES = 4  # that a kernel counts into in turn


@dataclass
class Reduced:
    """``norms`` [n] are ``||g_n||^2``, ``dots`` [n, 2] the projections, both float64; ``counts`` is a table like that of
    ``Counts``; ``gram`` [k, k] are products of the first samples, where they were asked for."""

    norms: Tensor
    dots: Tensor
    counts: Tensor | None = None
    gram: Tensor | None = None
    arrays: tuple[np.ndarray, np.ndarray] | None = None
    """``norms`` and ``dots`` once more, where they are known as such."""


@lru_cache(maxsize=64)
def describe_rule(bins: AnyBins, double: bool) -> Tensor:
    """The rule's constants in the order of ``read_rule`` in body.h."""
    if isinstance(bins, LogBins):
        limits = bins.thresholds(double)
        shape = [bins.per_octave, bins.lowest, bins.steps, *limits, *[0] * (8 - len(limits))]
        numbers = [1.0, *[0.0] * 5, bins.count, 0.0, *shape]
    else:
        rule = bins.binning(double)
        inner = bins.zero_edge is not None and 2 <= rule.offset <= rule.count - 2
        bounds = [float(x) for x in (rule.anchor, rule.scale, rule.low, rule.high)]
        numbers = [0.0, *bounds, rule.offset, rule.count, 1.0 if inner else 0.0, *[0.0] * 11]
    return torch.tensor([float(x) for x in numbers], dtype=torch.float64)


def can_reduce(like: Tensor, directions: int) -> bool:
    """On this device, of this dtype, with so many directions."""
    plain = like.device.type == "cpu" and like.dtype in TYPES
    return plain and directions <= MOST_DIRECTIONS and find_library() is not None


class Share:
    """What one thread adds to."""

    def __init__(self, samples: int, counts: bool, size: int):
        self.norms = torch.zeros(samples, dtype=torch.float64)
        self.dots = torch.zeros(samples, 2, dtype=torch.float64)
        self.table = torch.zeros(TABLES, size, dtype=torch.int64) if counts else None

    @property
    def table_pointer(self) -> int:
        return 0 if self.table is None else self.table.data_ptr()


def find_rule(bins: AnyBins | None, dtype: torch.dtype) -> tuple[Tensor | None, int]:
    """The rule's constants and how many categories there are. Whoever passes their address on must hold them until
    then: another thread may push them out of the cache."""
    if bins is None:
        return None, 0
    return describe_rule(bins, dtype == torch.float64), bins.count + GRADIENT_EXTRA


def pointer_of(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def address_of(numbers: array) -> int:
    """Whoever passes it on must hold them until then. Small arrays of Python's own tell it faster than numpy's."""
    return numbers.buffer_info()[0]


def add_up(shares: Sequence[Share]) -> Reduced:
    total = shares[0]
    for other in shares[1:]:
        total.norms += other.norms
        total.dots += other.dots
        if total.table is not None and other.table is not None:
            total.table += other.table
    return Reduced(total.norms, total.dots, None if total.table is None else total.table.sum(0))


def reduce_block(G: Tensor, directions: Tensor | None, scale: float, bins: AnyBins | None) -> Reduced:
    """Of ``scale * G`` [n, D]; ``directions`` is [k, D], k at most 2."""
    library = find_library()
    assert library is not None
    if directions is not None and directions.shape[1] != G.shape[1]:  # a kernel would read what is not there
        raise ValueError(f"gradients of {G.shape[1]} elements cannot be projected on {directions.shape[1]} elements")
    G = G if G.shape[1] < 2 or G.stride(1) == 1 else G.contiguous()
    directions = None if directions is None else directions.to(G.dtype).contiguous()
    kernel = library.function("reduce_block", G.dtype)
    rows, columns = G.shape
    number = 0 if directions is None else len(directions)
    start, along = G.data_ptr(), 0 if directions is None else directions.data_ptr()
    (rule, size), each = find_rule(bins, G.dtype), G.element_size()
    by_rows = rows >= torch.get_num_threads() > 1 or columns < rows

    def run(low: int, high: int) -> Share:
        own = Share(rows, bins is not None, size)
        first, count = (low, high - low) if by_rows else (0, rows)
        shift, width = (0, columns) if by_rows else (low, high - low)
        kernel(
            start + (first * G.stride(0) + shift) * each, G.stride(0), count, width, scale, along + shift * each,
            columns, number, pointer_of(rule), own.table_pointer, size,
            own.norms.data_ptr() + 8 * first, own.dots.data_ptr() + 16 * first,
        )  # fmt: skip
        return own

    if not G.numel():
        return add_up([Share(rows, bins is not None, size)])
    return add_up(share(run, cut(rows if by_rows else columns, G.numel(), ALONE)))


def reduce_blocks(
    blocks: Sequence[Tensor], directions: Sequence[Sequence[Tensor]], scales: Sequence[float], bins: AnyBins | None
) -> list[Reduced]:
    """``reduce_block`` for many small blocks of one dtype with one call: reducing a bias takes less time than the
    call."""
    library = find_library()
    assert library is not None
    like, jobs, held, first = blocks[0], array("q"), list[Tensor](), 0
    dtype = like.dtype
    for G, along in zip(blocks, directions, strict=True):
        rows, columns = G.shape
        if G.dtype is not dtype or any(d.dtype is not dtype for d in along):
            raise TypeError("blocks that are reduced together, and their directions, have one dtype")
        if len(along) > MOST_DIRECTIONS or any(d.numel() != columns for d in along):
            raise ValueError(f"gradients of {columns} elements cannot be projected on a direction of other size")
        G = G if columns < 2 or G.stride(1) == 1 else G.contiguous()
        flat = [d if d.is_contiguous() else d.contiguous() for d in along]
        held += [G, *flat]
        pointers = [d.data_ptr() for d in flat] + [0] * (MOST_DIRECTIONS - len(flat))
        jobs.extend((G.data_ptr(), G.stride(0), rows, columns, *pointers, first))
        first += rows
    rule, size = find_rule(bins, like.dtype)
    norms, dots, factors = np.zeros(first), np.zeros((first, 2)), array("d", scales)
    table = None if bins is None else torch.zeros(len(blocks), TABLES, size, dtype=torch.int64)
    library.function("reduce_blocks", like.dtype)(
        address_of(jobs), address_of(factors), len(blocks), pointer_of(rule), 0 if table is None else table.data_ptr(), size,
        norms.ctypes.data, dots.ctypes.data,
    )  # fmt: skip
    sizes = [G.shape[0] for G in blocks]  # ``len`` of a tensor is slow
    return cut_apart(norms, dots, sizes, None if table is None else table.sum(1).unbind())


def cut_apart(
    norms: np.ndarray, dots: np.ndarray, sizes: Sequence[int], tables: Sequence[Tensor] | None = None
) -> list[Reduced]:
    """``norms`` [n] and ``dots`` [n, 2] of several layers one behind the other, with so many samples each."""
    results, start = [], 0
    for k, size in enumerate(sizes):
        own = norms[start : start + size], dots[start : start + size]
        counts = None if tables is None else tables[k]
        results.append(Reduced(torch.from_numpy(own[0]), torch.from_numpy(own[1]), counts, arrays=own))
        start += size
    return results


def multiply_pairs(pairs: Sequence[tuple[Tensor, Tensor]]) -> np.ndarray:
    """``x . y`` [n] of many small ones of one dtype, contiguous and of equal size, with one call."""
    library = find_library()
    assert library is not None
    dtype = pairs[0][0].dtype
    for x, y in pairs:
        if x.numel() != y.numel() or x.dtype != dtype or y.dtype != dtype or not x.is_contiguous() & y.is_contiguous():
            raise ValueError("pairs that are multiplied together are contiguous, alike in size, and have one dtype")
    jobs = array("q")
    for k, (x, y) in enumerate(pairs):
        jobs.extend((x.data_ptr(), 0, 1, x.numel(), y.data_ptr(), 0, k))
    factors, norms, dots = array("d", [1.0]) * len(pairs), array("d", bytes(8 * len(pairs))), np.zeros((len(pairs), 2))
    library.function("reduce_blocks", dtype)(
        address_of(jobs), address_of(factors), len(pairs), 0, 0, 0, address_of(norms), dots.ctypes.data
    )
    return dots[:, 0]

"""Work on many layers with one call of the library, shared by threads that take one item after the other."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from cockpit_core.kernels.native import find_library
from cockpit_core.kernels.native.convolving import (
    ALONE,
    PADDING,
    Geometry,
    Sizes,
    begin_rows,
    check_fit,
    lay_out,
    take_room,
    widen_space,
)
from cockpit_core.kernels.native.reducing import Reduced, address_of, cut_apart
from cockpit_core.kernels.threads import work_together

IMAGES = 2**16
"""Numbers of moved images that one thread works on: they stay in its second-level cache."""


def walk(
    name: str, dtype: torch.dtype, items: array, jobs: array, scales: array, threads: int,
    norms: int = 0, dots: int = 0, room: int = 0, room_size: int = 0,
) -> None:  # fmt: skip
    """All ``items`` [*, 3] of a kernel of walking.h, whose comments say what each field is."""
    library = find_library()
    assert library is not None
    work = array("q", (0, 0, len(items) // 3, address_of(items), address_of(jobs), address_of(scales)))
    work.extend((norms, dots, room, room_size))
    work_together(library.function(name, dtype), address_of(work), threads)


def list_items(counts: Sequence[int], most: Sequence[int]) -> array:
    """[*, 3]: the samples of each job, so many at a time."""
    items = array("q")
    for k, (count, each) in enumerate(zip(counts, most, strict=True)):
        for first in range(0, count, each):
            items.extend((k, first, min(first + each, count)))
    return items


@dataclass(frozen=True)
class Folded:
    """``g_n[o, c, k] = scale * sum_s left_n[o, s] image_n[c, patch(k, s)]``: ``left`` [n, rows, *out], ``image`` [n, channels,
    *space], which zeros are put ``around``; and the ``direction`` that they are projected on."""

    left: Tensor
    image: Tensor
    geometry: Geometry
    groups: int
    shape: Sizes
    scale: float
    around: Sizes
    direction: Tensor


@dataclass(frozen=True)
class Layout:
    """What is the same for all layers of one size: fields of a job but its addresses and places, and arrays that it points
    to. ``moved``: numbers of one sample's moved image. ``products``: how many one sample takes."""

    fields: tuple[int, ...]
    moved: int
    products: int
    held: tuple[np.ndarray, ...]


@lru_cache(maxsize=256)
def find_layout(left: Sizes, image: Sizes, geometry: Geometry, groups: int, shape: Sizes, around: Sizes) -> Layout:
    """Raises where sizes do not fit each other: a kernel would read what is not there."""
    check_fit(left, image, geometry, groups, shape, around)
    space, out, channels = widen_space(image[2:], around), left[2:], image[1] // groups
    places, starts, rows = lay_out(geometry, space, out, channels)
    begins, moved = begin_rows(image[2:], around), channels * math.prod(space)
    sizes = groups, channels, left[1] // groups, len(begins), image[-1], begins.ctypes.data, moved, len(places)
    fields = (*sizes, len(starts), *rows, places.ctypes.data, starts.ctypes.data, math.prod(geometry[0]))
    return Layout(fields, groups * moved, math.prod(left[1:]) * math.prod(shape[1:]), (places, starts, begins))


def reduce_convolutions(layers: Sequence[Folded]) -> list[Reduced]:
    """Norms and projections of many convolutions, all of one dtype, with one call."""
    dtype, threads, total = layers[0].left.dtype, torch.get_num_threads(), 0
    jobs, counts, most, held, room = array("q"), list[int](), list[int](), list[object](), 0
    work = 0
    for own in layers:
        if not own.left.dtype == own.image.dtype == own.direction.dtype == dtype:
            raise TypeError("layers that are walked through together, and their directions, have one dtype")
        if own.direction.numel() != math.prod(own.shape):
            raise ValueError(f"a direction of {own.direction.numel()} elements does not fit a weight {own.shape}")
        sides = tuple(own.left.shape), tuple(own.image.shape)
        layout = find_layout(*sides, own.geometry, own.groups, own.shape, own.around)
        given = [side.contiguous() for side in (own.image, own.left, own.direction)]
        samples = sides[0][0]
        each = max(1, min(IMAGES // layout.moved, -(-samples // threads)))
        jobs.extend((*(side.data_ptr() for side in given), *layout.fields, total, each))
        held += [given, layout]
        counts.append(samples)
        most.append(each)
        total, work = total + samples, work + samples * layout.products
        room = max(room, each * layout.moved + own.direction.numel() + 4 * PADDING)
    room = -(-room // PADDING) * PADDING
    threads = threads if work >= 2 * ALONE else 1
    numbers, spare = np.zeros((3, total)), take_room(room * threads, dtype)
    norms, dots = numbers[0], numbers[1:].reshape(total, 2)
    scales = array("d", [own.scale for own in layers])
    walk(
        "walk_convolutions", dtype, list_items(counts, most), jobs, scales, threads,
        norms.ctypes.data, dots.ctypes.data, spare.data_ptr(), room,
    )  # fmt: skip
    return cut_apart(norms, dots, counts)

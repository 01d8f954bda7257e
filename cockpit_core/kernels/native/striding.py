"""Lengths of parameters, steps and gradients, differences of two, and how far one runs along another: all tensors of a
network with one call, summed in double precision."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence

from torch import Tensor, strided
from torch.nn import Parameter

from cockpit_core.kernels.native import TYPES, find_library
from cockpit_core.kernels.native.reducing import address_of
from cockpit_core.kernels.threads import cut, share

LARGEST = 2**16
"""Elements of one job, so that threads can share large tensors. Sums are the same with any number of them."""
ALONE = 2**18
"""Elements that one thread walks through in about the time that it takes to wake another one."""
FREED = "the memory of a tensor was freed: there is nothing to walk through"
AGAIN = 0.25
"""The share of what a factor leaves of a step that may still run along the gradient. Beyond it few digits of the rest are
left."""


def can_walk(tensors: Sequence[Tensor]) -> bool:
    """On the host, of one type, each in one piece. Tensors of other classes may hold their numbers elsewhere."""
    if not tensors or tensors[0].dtype not in TYPES or find_library() is None:
        return False
    dtype = tensors[0].dtype
    for t in tensors:
        if (type(t) is not Parameter and type(t) is not Tensor) or t.dtype is not dtype or not t.is_cpu:
            return False
        if t.layout is not strided or not t.is_contiguous() or t.is_neg():
            return False
    return True


def try_lengths(tensors: Sequence[Tensor]) -> list[float] | None:
    """``||x||`` of each; None where they cannot be walked through."""
    nothing = [None] * len(tensors)
    lengths = try_apart(tensors, nothing, nothing)
    return None if lengths is None else [own for own, _ in lengths]


def try_apart(
    one: Sequence[Tensor], other: Sequence[Tensor | None], into: Sequence[Tensor | None]
) -> list[tuple[float, float]] | None:
    """``||x||`` and ``||x - y||`` of each pair; the latter is 0 without a ``y``. The difference is put into ``into``, where
    that is given. None where they cannot be walked through."""
    if not can_walk([t for some in (one, other, into) for t in some if t is not None]):
        return None
    owners, jobs, each = list[int](), array("q"), one[0].element_size()
    for k, (x, y, to) in enumerate(zip(one, other, into, strict=True)):
        size, start = x.numel(), x.data_ptr()
        beside, there = 0 if y is None else y.data_ptr(), 0 if to is None else to.data_ptr()
        if (y is not None and y.numel() != size) or (to is not None and (y is None or to.numel() != size)):
            raise ValueError("tensors that are compared have the same size")
        if size and not (start and (y is None or beside) and (to is None or there)):
            raise ValueError(FREED)
        for low in range(0, size, LARGEST):
            owners.append(k)
            shift = low * each
            jobs.extend((start + shift, beside and beside + shift, there and there + shift, min(LARGEST, size - low)))
    sums = walk(find("walk_apart", one[0]), owners, jobs, 4, None, len(one))
    root = math.sqrt
    return [(root(sums[2 * k]), root(sums[2 * k + 1])) for k in range(len(one))]


def find_along(
    steps: Sequence[Tensor], gradients: Sequence[Tensor], squared: Sequence[float], guesses: Sequence[float]
) -> list[tuple[float, float]]:
    """``c = s.g / g.g`` and ``||s - c g||^2`` of each pair; ``squared`` are ``g.g``. From a guess, because ``s.s - c^2 g.g`` would
    lose all digits where a step runs along its gradient; twice where the guess was bad."""
    if not can_walk([*steps, *gradients]):  # a kernel would read what is not there
        raise ValueError("tensors that are walked through lie on the host, each in one piece, and have one dtype")
    factors, rests = list(guesses), [0.0] * len(steps)
    left = list(range(len(steps)))
    for _ in range(2):
        sums = walk_along([(steps[k], gradients[k], factors[k]) for k in left])
        again = []
        for place, k in enumerate(left):
            rest, more = sums[2 * place], sums[2 * place + 1]
            factors[k] += more / squared[k]
            apart = rest - more * more / squared[k]
            rests[k] = max(0.0, apart) if math.isfinite(apart) else math.inf
            if more * more > AGAIN * rest * squared[k]:
                again.append(k)
        left = again
        if not left:
            break
    return list(zip(factors, rests, strict=True))


def walk_along(triples: Sequence[tuple[Tensor, Tensor, float]]) -> array:
    owners, jobs, factors, each = list[int](), array("q"), array("d"), triples[0][0].element_size()
    for k, (s, g, factor) in enumerate(triples):
        size, first, second = s.numel(), s.data_ptr(), g.data_ptr()
        if g.numel() != size:
            raise ValueError("a step and its gradient have the same size")
        if size and not (first and second):
            raise ValueError(FREED)
        for low in range(0, size, LARGEST):
            owners.append(k)
            factors.append(factor)
            jobs.extend((first + low * each, second + low * each, min(LARGEST, size - low)))
    return walk(find("walk_along", triples[0][0]), owners, jobs, 3, factors, len(triples))


def walk(
    kernel: Callable[..., None], owners: list[int], jobs: array, wide: int, given: array | None, count: int
) -> array:
    """Two sums for each of ``count`` tensors, from those of their pieces. ``jobs`` has ``wide`` numbers for each piece, the last
    of them its size, and ``given`` one more, if any."""
    pieces = len(owners)
    places, parts, more = address_of(jobs), array("d", bytes(16 * pieces)), 0 if given is None else address_of(given)
    to = address_of(parts)

    def work(low: int, high: int) -> None:
        also = (more + 8 * low,) if more else ()
        kernel(places + 8 * wide * low, *also, high - low, to + 16 * low)

    if pieces > count:
        share(work, cut(pieces, sum(jobs[wide - 1 :: wide]), ALONE))
    else:  # none is long
        work(0, pieces)
    if owners == list(range(count)):  # each in one piece
        return parts
    sums = array("d", bytes(16 * count))
    for k, owner in enumerate(owners):
        sums[2 * owner] += parts[2 * k]
        sums[2 * owner + 1] += parts[2 * k + 1]
    return sums


def find(name: str, like: Tensor) -> Callable[..., None]:
    library = find_library()
    assert library is not None
    return library.function(name, like.dtype)

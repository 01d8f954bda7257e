"""The fused CPU loops, compiled by numba: nogil functions over one share of the work, each filling a table of its
own.

They use no parallel runtime of numba's (which aborts in a forked data-loading worker); ``fused`` runs them in plain
threads. All live in this one file because numba's cache on disk notices changes of the file that holds a function,
not of its callees.

Each loop first writes categories into a small buffer (vectorised by the compiler) and then counts. Most gradients are
tiny, so nearly all fall into one or two *hot* categories: those are counted by comparing, many at once, and only the
others one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

CHUNK = 1024  # elements whose categories are in flight, 4 kB


def _compile(function: Callable[..., Any]) -> Any:
    # error_model="numpy" drops the test for division by zero; fastmath stays off, it would break the rounding rule.
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "boundscheck": False}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no writable place for the cache: compile anew in each process
        return numba.njit(**options)(function)


@_compile
def round_product(x, kind):  # type: ignore[no-untyped-def]
    """Round a float32 product once to bfloat16 (kind 1) or float16 (kind 2), to nearest even; kind 0 leaves it."""
    if kind == 0:
        return x
    y = np.float32(x)
    bits = y.view(np.int32)
    magnitude = bits & 0x7FFFFFFF
    if magnitude >= 0x7F800000:  # infinity and NaN
        return x
    if kind == 1:
        return type(x)(np.int32((bits + 0x7FFF + ((bits >> 16) & 1)) & ~0xFFFF).view(np.float32))
    if magnitude >= 0x477FF000:  # 65520 and beyond rounds to infinity
        return type(x)(np.float32(np.inf) if bits >= 0 else np.float32(-np.inf))
    if magnitude < 0x38800000:  # below 2**-14 float16 is a fixed-point number of 2**-24
        return type(x)(np.float32(y + np.float32(0.75)) - np.float32(0.75))
    return type(x)(np.int32((bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF).view(np.float32))


@_compile
def find_category(v, rule):  # type: ignore[no-untyped-def]
    """The category of one value; see ``bins`` for the rule and ``fused.constants`` for the tuple.

    All in the type of the value, the category too until the end: a mixture would run at half the speed.
    """
    anchor, scale, low, high, first, last, shift, above, infinity = rule
    t = (v - anchor) * scale
    t = t if t >= first else first  # also NaN
    t = t if t <= last else last
    t = np.floor(t) + shift
    t = low - low if v < low else t
    t = above if v > high else t
    t = above + type(above)(1) if v != v else t
    t = above + type(above)(2) if v == infinity else t
    t = above + type(above)(3) if v == -infinity else t
    return np.int32(t)


@_compile
def find_quickly(v, rule):  # type: ignore[no-untyped-def]
    """The same for values inside the bins; what is outside or not finite comes out as below or above."""
    anchor, scale, low, high, first, last, shift, above, _ = rule
    t = (v - anchor) * scale
    t = t if t >= first else first
    t = t if t <= last else last
    t = np.floor(t) + shift
    t = low - low if v < low else t
    t = t if v <= high else above  # also NaN
    return np.int32(t)


@_compile
def has_outside(found, size, above):  # type: ignore[no-untyped-def]
    kind = found.dtype.type
    largest = kind(0)
    for j in range(size):
        lowered = kind(found[j] - kind(1))  # below wraps round to the largest number, so one comparison finds both
        largest = lowered if lowered > largest else largest
    return largest >= kind(above - 1)


@_compile
def find_categories(values, start, size, rule, found):  # type: ignore[no-untyped-def]
    """Quickly first; a chunk with values outside, which are rare, is done again with all cases."""
    part = values[start : start + size]
    for j in range(size):
        found[j] = find_quickly(part[j], rule)
    if has_outside(found, size, rule[7]):
        for j in range(size):
            found[j] = find_category(part[j], rule)


@_compile
def find_product_categories(factor, values, start, size, kind, rule, found):  # type: ignore[no-untyped-def]
    part = values[start : start + size]
    if kind == 0:
        for j in range(size):
            found[j] = find_category(factor * part[j], rule)
    else:
        for j in range(size):
            found[j] = find_category(round_product(factor * part[j], kind), rule)


@_compile
def find_hot(values, start, stop, rule, categories):  # type: ignore[no-untyped-def]
    """The two most frequent categories among some hundred values of all samples: a guess that only speed depends on."""
    votes = np.zeros(categories, np.int32)
    columns = max(1, (stop - start) // 32)
    rows = max(1, values.shape[0] // 8)
    for n in range(0, values.shape[0], rows):
        for d in range(start, stop, columns):
            votes[find_category(values[n, d], rule)] += 1
    hottest = np.argmax(votes)
    votes[hottest] = -1
    return hottest, np.argmax(votes)


@_compile
def scatter(found, size, parameter, offset, tables):  # type: ignore[no-untyped-def]
    """One by one, into two tables in turn: a counter that is incremented twice in a row would wait for itself."""
    part = parameter[offset : offset + size]
    for j in range(0, size - 1, 2):
        tables[0, found[j], part[j]] += 1
        tables[1, found[j + 1], part[j + 1]] += 1
    if size % 2:
        tables[0, found[size - 1], part[size - 1]] += 1


@_compile
def add_found(found, size, hot, ones, twos, cold, words, parameter, offset, tables):  # type: ignore[no-untyped-def]
    """Count one chunk: hot categories as bytes per element in ``ones`` and ``twos``, the others at once in the
    tables.
    """
    first = found.dtype.type(hot[0])
    second = found.dtype.type(hot[1])
    for j in range(size):
        cold[j] = np.uint8((found[j] != first) & (found[j] != second))
    total = (size + 7) // 8
    busy = 0
    for k in range(total):
        busy += words[k] != 0
    if 2 * busy > total:  # so many are cold that looking for them costs more than it saves
        scatter(found, size, parameter, offset, tables)
        return
    for j in range(size):
        ones[j] += np.uint8(found[j] == first)
        twos[j] += np.uint8(found[j] == second)
    if busy:
        for k in range(total):
            if words[k] != 0:
                for j in range(8 * k, 8 * k + 8):
                    if cold[j]:
                        tables[0, found[j], parameter[offset + j]] += 1


@_compile
def flush_hot(size, hot, ones, twos, parameter, offset, tables):  # type: ignore[no-untyped-def]
    for j in range(size):
        tables[0, hot[0], parameter[offset + j]] += ones[j]
        tables[1, hot[1], parameter[offset + j]] += twos[j]
        ones[j] = 0
        twos[j] = 0


@_compile
def count_values(values, parameter, rule, found, start, stop, tables):  # type: ignore[no-untyped-def]
    """The columns [start, stop) of ``values`` [n, D] with the parameter categories [D] (all 0 for a 1D histogram).

    ``found`` is scratch for the categories of a chunk, as narrow as they fit; ``tables`` is [2, categories,
    parameter's].
    """
    hot = find_hot(values, start, stop, rule, tables.shape[1])
    ones = np.zeros(CHUNK, np.uint8)
    twos = np.zeros(CHUNK, np.uint8)
    cold = np.zeros(CHUNK, np.uint8)
    words = cold.view(np.uint64)
    for chunk in range(start, stop, CHUNK):
        size = min(CHUNK, stop - chunk)
        cold[:] = 0
        for n in range(values.shape[0]):
            find_categories(values[n], chunk, size, rule, found)
            add_found(found, size, hot, ones, twos, cold, words, parameter, chunk, tables)
            if n % 255 == 254:  # before the bytes overflow
                flush_hot(size, hot, ones, twos, parameter, chunk, tables)
        flush_hot(size, hot, ones, twos, parameter, chunk, tables)


@_compile
def count_row(factor, values, kind, rule, found, parameter, tables):  # type: ignore[no-untyped-def]
    """One row of products, one by one: for what is not finite, or spreads over very many bins."""
    for chunk in range(0, values.shape[0], CHUNK):
        size = min(CHUNK, values.shape[0] - chunk)
        find_product_categories(factor, values, chunk, size, kind, rule, found)
        scatter(found, size, parameter, chunk, tables)


@_compile
def count_outer1d(b, a, nothing, kind, rule, found, start, stop, tables):  # type: ignore[no-untyped-def]
    """1D histogram of all ``b[n, i] * a[n, j]`` for the samples [start, stop); each ``a[n]`` must be sorted.

    With sorted factors the products of a row are sorted too, and so are their categories: each is one range, whose
    end is found by bisection with the real predicate. A row costs O(occupied bins * log(in)) instead of O(in).
    """
    length = a.shape[1]
    price = 4 * int(np.log2(length) + 1)  # of one search, in elements that are counted one by one
    for n in range(start, stop):
        row = a[n]
        finite = np.isfinite(row[0]) and np.isfinite(row[length - 1])  # NaN is sorted to the end
        for i in range(b.shape[1]):
            factor = b[n, i]
            here = find_category(round_product(factor * row[0], kind), rule)
            final = find_category(round_product(factor * row[length - 1], kind), rule)
            if not (finite and np.isfinite(factor)) or price * abs(final - here) > length:
                count_row(factor, row, kind, rule, found, nothing, tables)
                continue
            position = 0
            while here != final:
                inside, outside = position, length - 1
                while outside - inside > 1:
                    middle = (inside + outside) >> 1
                    if find_category(round_product(factor * row[middle], kind), rule) == here:
                        inside = middle
                    else:
                        outside = middle
                tables[0, here, 0] += outside - position
                position = outside
                here = find_category(round_product(factor * row[position], kind), rule)
            tables[0, final, 0] += length - position


@_compile
def count_cold(factor, row, order, step, kind, rule, hot):  # type: ignore[no-untyped-def]
    """How many products at one end of the sorted row (``step`` 1: least, -1: largest factors) are not next to zero.

    Bisects for the end of the cold ones, or returns the whole length if it finds none, which is slow but not wrong.
    """
    length = row.shape[0]
    inside, outside = -1, length  # cold up to ``inside`` from that end, hot from ``outside`` on
    middle = 0  # nearly all rows have none: look there first
    while outside - inside > 1:
        j = order[middle] if step > 0 else order[length - 1 - middle]
        x = round_product(factor * row[j], kind)
        if find_category(x, rule) == (hot[0] if x < 0 else hot[1]):
            outside = middle
        else:
            inside = middle
        middle = (inside + outside) >> 1
    return outside


@_compile
def move_cold(factor, row, order, start, stop, kind, rule, hot, parameter, tables):  # type: ignore[no-untyped-def]
    for k in range(start, stop):
        j = order[k]
        x = round_product(factor * row[j], kind)
        tables[0, find_category(x, rule), parameter[j]] += 1
        tables[1, hot[0] if x < 0 else hot[1], parameter[j]] -= 1


@_compile
def count_outer2d(b, a, masks, order, smallest, kind, rule, hot, parameter, found, start, stop, tables):  # type: ignore[no-untyped-def]
    """2D histogram of all ``b[n, i] * a[n, j]`` with ``parameter[i, j]``, for the rows i in [start, stop).

    All products are first taken to lie next to zero, in the category of their sign (``hot``: of -0 < x and of 0 <=
    x): how many of the samples are negative at (i, j) is a sum of masks (``masks[0]``: a < 0, ``masks[1]``: a > 0, as
    bytes), 64 elements per instruction. Those that are not next to zero are then moved, which costs O(their number):
    ``order`` sorts each ``a[n]``. A row goes one by one if more than an eighth of it has to move, if a product
    underflows to zero and so loses its sign (``smallest``: the least nonzero magnitude of a[n]), or if something is
    not finite (``smallest`` is NaN).
    """
    length = a.shape[1]
    below_zero, at_zero = hot
    bytes_ = np.zeros(length, np.uint8)
    negative = np.zeros(length, np.int64)
    for i in range(start, stop):
        negative[:] = 0
        rows = 0
        pending = 0
        for n in range(b.shape[0]):
            factor = b[n, i]
            row = a[n]
            if not (np.isfinite(factor) and np.isfinite(smallest[n])):
                count_row(factor, row, kind, rule, found, parameter[i], tables)
                continue
            if factor != 0:
                least = count_cold(factor, row, order[n], 1, kind, rule, hot)
                largest = count_cold(factor, row, order[n], -1, kind, rule, hot)
                if 8 * (least + largest) > length or round_product(factor * smallest[n], kind) == 0:
                    count_row(factor, row, kind, rule, found, parameter[i], tables)
                    continue
                move_cold(factor, row, order[n], 0, least, kind, rule, hot, parameter[i], tables)
                move_cold(factor, row, order[n], length - largest, length, kind, rule, hot, parameter[i], tables)
                mask = masks[0, n] if factor > 0 else masks[1, n]
                for j in range(length):
                    bytes_[j] += mask[j]
                pending += 1
            rows += 1
            if pending == 255:
                for j in range(length):
                    negative[j] += bytes_[j]
                    bytes_[j] = 0
                pending = 0
        for j in range(length):
            below = negative[j] + bytes_[j]
            bytes_[j] = 0
            tables[0, below_zero, parameter[i, j]] += below
            tables[1, at_zero, parameter[i, j]] += rows - below

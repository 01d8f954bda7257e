"""The batch that the model sees: its scale, its outliers, whether it is the same again."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from torch import Tensor

from cockpit_core.signals.order import Order
from cockpit_core.signals.reading import Steps, lower_median, signal
from cockpit_core.signals.tensors import as_rows

add, highest, lowest, some = np.add.reduce, np.maximum.reduce, np.minimum.reduce, np.logical_or.reduce
"""What numpy's methods do, without what they do for arrays of any kind."""
ENOUGH = 4  # samples, below which scales of features say nothing
FEW_COLUMNS = 40  # pictures that were laid flat have more, and borders
LARGE, FAR = 2.0, 15.0**2  # of all inputs, where far ones are looked for; squared distances between quartiles
QUARTILES = 8  # samples that have some
ENOUGH_CODES = 8  # samples, below which codes are the same by accident


@signal
def measure_inputs(x: Tensor, beside: bool = False, order: Order | None = None) -> Steps[dict[str, float]]:
    """Scale, feature scales, tail of sample lengths and constant features of a floating point input [B, ...].

    ``input_ratio`` is the largest root mean square of a feature over their median; ``input_tail`` is the length of the
    longest sample (after the mean is taken off) over the median length. Sparse inputs (one-hot, bags of words) have
    large ratios and mislead; ``input_zeros`` tells them apart. ``beside``: beside codes; nothing but zeros is a state then.
    ``order``: of the batches before.
    """
    (rows,) = yield [as_rows(x)]
    rows = np.ascontiguousarray(rows)  # columns lie apart where some were left out: slow to go through many times
    rows, broken, size = without_broken(rows)
    if not size and beside:
        return {}
    numbers = {"input_rms": size, "input_zeros": 1 - np.count_nonzero(rows) / rows.size}
    if broken:
        numbers["input_not_finite"] = float(broken)
    if rows.shape[0] >= ENOUGH:
        numbers |= _compare(rows) | ({} if order is None else order.compare(rows)) | _count_stuck(rows, x.shape)
    return numbers


def _count_stuck(rows: np.ndarray, shape: tuple[int, ...]) -> dict[str, float]:
    """``input_stuck``: the share of columns of a small table, or of channels of a sequence (longer than it has channels), that
    hold one value throughout; not 0, as padding does, nor 1, as a mask does, or one column of a table that is an intercept."""
    table = len(shape) == 2 and shape[1] <= FEW_COLUMNS
    if table:
        parts = rows
    elif len(shape) == 3 and rows.shape[1] == shape[1] * shape[2] and max(shape[1:]) >= 2 * min(shape[1:]):
        parts = rows.reshape(len(rows), *shape[1:])
        parts = (parts if shape[1] > shape[2] else parts.swapaxes(1, 2)).reshape(-1, min(shape[1:]))
    else:
        return {}
    low = lowest(parts, 0)
    stuck = (low == highest(parts, 0)) & (low != 0)
    ones = stuck & (low == 1)
    if not table or np.count_nonzero(ones) == 1:
        stuck = stuck & ~ones
    return {"input_stuck": float(stuck.mean())}


def mean_size(values: np.ndarray) -> float:
    """The root mean square."""
    flat = values.reshape(-1)
    return float(np.sqrt(float(flat @ flat) / max(flat.size, 1)))


def without_broken(rows: np.ndarray) -> tuple[np.ndarray, int, float]:
    """With zeros for what is not finite, how much that is, and the root mean square of the rest."""
    size = mean_size(rows)
    if math.isfinite(size):  # then all of them are
        return rows, 0, size
    finite = np.isfinite(rows)
    broken = rows.size - int(np.count_nonzero(finite))
    rows = np.where(finite, rows, np.float32(0)) if broken else rows
    return rows, broken, mean_size(rows)


def _compare(rows: np.ndarray) -> dict[str, float]:
    """Between features (columns) and between samples (rows)."""
    columns = np.ascontiguousarray(rows.T)
    spread = columns - lower_median(columns)[:, None]
    lengths = np.sqrt(np.einsum("ij,ij->j", spread, spread))
    middle = float(lower_median(lengths))
    numbers: dict[str, float] = {"input_constant": 1 - np.count_nonzero(some(spread, 1)) / len(spread)}
    if middle > 0:
        numbers["input_tail"] = float(highest(lengths)) / middle
    scales = np.sqrt(np.einsum("ij,ij->i", columns, columns) / np.float32(len(rows)))
    if mean_size(scales) > LARGE and len(rows) >= QUARTILES:
        numbers |= _find_far(columns, spread)
    live = scales[scales > 0]
    if len(live) > 1:
        numbers["input_ratio"] = float(highest(live) / lower_median(live))
    return numbers


def _find_far(columns: np.ndarray, spread: np.ndarray) -> dict[str, float]:
    """``input_far``: the share of numbers that lie many times as far from the middle of their feature as its quartiles do.
    ``input_far_part``: how much of all squares about the middle is theirs. A scale leaves none so far."""
    ordered = np.sort(columns, axis=1)
    usual = ordered[:, 3 * columns.shape[1] // 4] - ordered[:, columns.shape[1] // 4]
    squares = spread * spread
    far = squares > (FAR * usual * usual)[:, None]
    far &= (usual > 0)[:, None]
    total = float(add(squares, None))
    return {"input_far": float(far.mean()), "input_far_part": float(squares[far].sum()) / total} if total > 0 else {}


@lru_cache(maxsize=8)
def make_weights(count: int) -> np.ndarray:
    """Multiples of the plastic ratio spread evenly."""
    return np.modf(np.arange(1, count + 1) * 0.7548776662466927)[0]


@signal
def measure_checksum(*parts: Tensor) -> Steps[dict[str, float]]:
    """A number that is the same for the same batch in any order, and the share of samples that occur twice in it. ``parts``: what
    one sample consists of, each [B, ...]. Sums of codes are alike by accident; those of their roots are not."""
    tables = yield [as_rows(x, 8192) for x in parts]
    rows = np.concatenate(tables, 1) if len(tables) > 1 else tables[0]
    marks = np.sort(rows.astype(np.float64) @ make_weights(rows.shape[1]))
    if not np.isfinite(marks[-1]) or not np.isfinite(marks[0]):
        return {}
    total = marks.sum() * 1e-3 + np.sqrt(np.abs(marks)).sum() * 0.0317
    numbers = {"batch_checksum": float(np.modf(total + marks[0] * 0.137 + marks[-1] * 0.731)[0])}
    if len(marks) > 1:
        numbers["batch_duplicates"] = np.count_nonzero(marks[1:] == marks[:-1]) / (len(marks) - 1)
    return numbers


@signal
def measure_codes(name: str, tensors: list[Tensor]) -> Steps[dict[str, float]]:
    """Of tensors with one code per sample: for how many all samples have the same code, by this name."""
    single = [codes for codes in tensors if codes.dim() and codes.numel() == len(codes) >= ENOUGH_CODES]
    if not single:
        return {}
    columns = yield [codes.reshape(-1) for codes in single]
    return {name: float(sum((codes == codes[0]).all() for codes in columns))}

"""First differences: for every quantity, the first step at which two settings are further apart than seeds of one are.

Runs may be tracked at different steps: all are read in cells around the steps of the one with the fewest values. A
cell holds the median of what a run has in it. Two settings are apart in a cell where the distance of their medians
over seeds
exceeds a factor times the larger range over seeds around it, and no seed of one lies among those of the other. That must hold for
``CELLS`` cells in a row, in one direction.

How often two halves of one setting are called different, per quantity, on made-up curves (white noise, seeds with an
offset, drifting seeds): with three runs each in at most 1.3 % of the cases, with two in at most 3 %. With one run
each the range over seeds is unknown. The fluctuation from cell to cell is used instead, and drifting curves come
apart by themselves in four of ten cases.

It misleads where something differs that is not on record. What comes first is a candidate for the cause, not a proof.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from cockpit_core.comparing.curves import SHARES, Curve, get_curve
from cockpit_core.comparing.settings import Setting

FACTORS = {1: 8.0, 2: 3.0}  # by the smaller number of runs: the range of two is mostly too small
FACTOR = 1.5
CELLS = 4
MOST = 80  # cells
FEWEST_ALONE = 6  # with one run per setting; with more, as many as must be apart
SMALLEST = 0.02  # a relative difference below two percent is no reason for anything


class TooFew(Exception):
    """Too few values are on record to say whether they separate."""


@dataclass(frozen=True)
class Difference:
    """From ``step`` on ``first`` and ``second`` (medians over the cells that prove it) are apart."""

    quantity: str
    step: int
    first: float
    second: float
    seeds: int  # of the setting with fewer runs: one is weak evidence

    @property
    def ratio(self) -> float:
        """How many times as large the first is; NaN where a ratio says nothing."""
        return self.first / self.second if self.first * self.second > 0 else float("nan")


def find_difference(name: str, first: Setting, second: Setting) -> Difference | None:
    """None: they do not separate. TooFew where that cannot be said."""
    curves = [[get_curve(run, name) for run in setting.runs] for setting in (first, second)]
    curves = [[curve for curve in group if len(curve)] for group in curves]
    if not all(curves):
        raise TooFew
    edges, steps = make_cells([curve for group in curves for curve in group])
    if len(steps) < (CELLS if min(map(len, curves)) > 1 else FEWEST_ALONE):
        raise TooFew
    tables = [np.array([fill_cells(curve, edges) for curve in group]) for group in curves]  # [seeds, cells]
    logarithmic = name not in SHARES and all((table > 0).all() for table in tables)
    scaled = [np.log(table) if logarithmic else table for table in tables]
    at = find_first(scaled[0], scaled[1], logarithmic)
    if at is None:
        return None
    a, b = (float(np.median(table[:, at : at + CELLS])) for table in tables)
    return Difference(name, int(steps[at]), a, b, min(map(len, tables)))


def make_cells(curves: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray]:
    """Edges between cells, and the first step of each: those of the coarsest curve, in the range that all have."""
    low, high = max(curve.steps[0] for curve in curves), min(curve.steps[-1] for curve in curves)
    inside = [np.unique(curve.steps[(curve.steps >= low) & (curve.steps <= high)]) for curve in curves]
    steps = min(inside, key=len)
    steps = steps[:: max(1, int(np.ceil(len(steps) / MOST)))]
    if len(steps) < 2:
        return np.empty(0), steps
    return np.concatenate((steps, [high + 1])) - 0.5, steps


def fill_cells(curve: Curve, edges: np.ndarray) -> np.ndarray:
    """The median in each cell; cells without a value lie on the line between their neighbours."""
    ends = np.searchsorted(curve.steps, edges)
    values = np.array([np.median(curve.values[i:j]) if j > i else np.nan for i, j in pairwise(ends)])
    known = np.flatnonzero(np.isfinite(values))
    return np.interp(np.arange(len(values)), known, values[known]) if len(known) else np.zeros(len(values))


def find_first(a: np.ndarray, b: np.ndarray, logarithmic: bool) -> int | None:
    """The first of ``CELLS`` cells in a row that are apart, in one direction. ``a`` and ``b`` are [seeds, cells]."""
    middle_a, middle_b = np.median(a, axis=0), np.median(b, axis=0)
    distance = middle_a - middle_b
    factor = FACTORS.get(min(len(a), len(b)), FACTOR)
    spread = np.maximum(measure_spread(a), measure_spread(b))
    scale = 1.0 if logarithmic else max(float(np.abs(np.concatenate((middle_a, middle_b))).max()), 1e-300)
    apart = np.abs(distance) > np.maximum(factor * spread, SMALLEST * scale)
    apart &= (a.min(axis=0) > b.max(axis=0)) | (b.min(axis=0) > a.max(axis=0))
    sign = np.where(apart, np.sign(distance), 0)
    for start in range(len(sign) - CELLS + 1):
        window = sign[start : start + CELLS]
        if window[0] and (window == window[0]).all():
            return start
    return None


def measure_spread(table: np.ndarray) -> np.ndarray:
    """The largest range over seeds in the cells around. For one run: how far a value lies from the mean of its
    neighbours."""
    if len(table) > 1:
        width = np.ptp(table, axis=0)
    else:
        bend = np.abs(np.diff(table[0], 2)) / np.sqrt(1.5) / 2
        width = np.concatenate((bend[:1], bend, bend[-1:]))
    padded = np.pad(width, CELLS // 2, mode="edge")
    return np.max(np.lib.stride_tricks.sliding_window_view(padded, CELLS // 2 * 2 + 1), axis=1)

"""Sums that the three gradient tests share (Bollapragada, Byrd and Nocedal 2017; Byrd et al. 2012)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cockpit_core.quantities.base import NoValue, Statistics, Value

Formula = Callable[[int, float, float], float]
"""``formula(B, sum_n ||g_n||^2 / ||g||^2, sum_n (g_n.g)^2 / ||g||^4)``, the expression under the root; a sum is NaN where
nobody asked for it."""
WHOLE = ""
"""The name of the network among those of its layers."""
add = np.add.reduce


def evaluate_test(statistics: Statistics, formula: Formula) -> Value:
    """The test of the network (sums over layers first) and of each layer on its own."""
    B = statistics.batch_size
    if not (statistics.norms or statistics.dots):
        raise NoValue(statistics.reason("individual", "no layer has individual gradients"))
    if B < 2:
        raise NoValue("a batch of one sample has no variance")
    sums = statistics.known_sums or find_sums(statistics)
    if WHOLE not in sums:
        raise NoValue("the gradient is zero")
    values = {name: rooted(formula(B, *both)) for name, both in sums.items()}
    return Value(values.pop(WHOLE), values)


def find_sums(statistics: Statistics) -> dict[str, tuple[float, float]]:
    """Of each layer whose gradient is not zero, and of the network; once for all tests."""
    names = list(statistics.norms or statistics.dots)
    norms, dots = statistics.arrays_of("norms"), statistics.arrays_of("dots")
    squared = {name: statistics.gradient_norms[name] ** 2 for name in names}
    sums, total = statistics.known_sums, sum(squared.values())
    lengths = {name: float(add(norms[name])) if name in norms else math.nan for name in names}
    with np.errstate(all="ignore"):  # gradients may be infinite
        for name in names:
            if squared[name] > 0 or math.isnan(squared[name]):
                sums[name] = lengths[name] / squared[name], relate(dots.get(name), squared[name])
        if total != 0:
            sums[WHOLE] = sum(lengths.values()) / total, relate(add_up(dots, names), total)
    return sums


def relate(dots: np.ndarray | None, squared: float) -> float:
    """Divided first: the squares of tiny numbers would be none."""
    if dots is None:
        return math.nan
    along = dots / squared
    return float(along @ along)


def add_up(vectors: Mapping[str, np.ndarray], names: list[str]) -> Any:
    present = [vectors[name] for name in names if name in vectors]
    return sum(present[1:], present[0]) if present else None


def rooted(value: float) -> float:
    return math.sqrt(max(value, 0.0)) if not math.isnan(value) else math.nan

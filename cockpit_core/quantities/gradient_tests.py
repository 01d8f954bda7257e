"""Sums that the three gradient tests share (Bollapragada, Byrd and Nocedal 2017; Byrd et al. 2012)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cockpit_core.quantities.base import NoValue, Statistics, Value

Formula = Callable[[int, Any, Any, float], float]
"""``formula(B, norms [B], dots [B], ||g||^2)``, the expression under the root; either is None where not asked for."""


def evaluate_test(statistics: Statistics, formula: Formula) -> Value:
    """The test of the network (sums over layers first) and of each layer on its own."""
    with np.errstate(all="ignore"):  # gradients may be infinite
        return _evaluate(statistics, formula)


def _evaluate(statistics: Statistics, formula: Formula) -> Value:
    B, names = statistics.batch_size, list(statistics.norms or statistics.dots)
    if not names:
        raise NoValue(statistics.reason("individual", "no layer has individual gradients"))
    if B < 2:
        raise NoValue("a batch of one sample has no variance")
    squared = {name: statistics.gradient_norms[name] ** 2 for name in names}
    norms, dots = statistics.arrays_of("norms"), statistics.arrays_of("dots")
    layers = {}
    for name in names:
        if squared[name] > 0 or math.isnan(squared[name]):
            layers[name] = rooted(formula(B, norms.get(name), dots.get(name), squared[name]))
    total = sum(squared.values())
    if total == 0:
        raise NoValue("the gradient is zero")
    return Value(rooted(formula(B, add_up(norms, names), add_up(dots, names), total)), layers)


def add_up(vectors: Mapping[str, np.ndarray], names: list[str]) -> Any:
    present = [vectors[name] for name in names if name in vectors]
    return sum(present[1:], present[0]) if present else None


def rooted(value: float) -> float:
    return math.sqrt(max(value, 0.0)) if not math.isnan(value) else math.nan

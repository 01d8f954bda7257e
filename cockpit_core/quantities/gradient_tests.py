"""Sums that the three gradient tests share (Bollapragada, Byrd and Nocedal 2017; Byrd et al. 2012)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from cockpit_core.quantities.base import NoValue, Statistics, Value

Formula = Callable[[int, Any, Tensor, float], float]
"""``formula(B, norms [B], dots [B], ||g||^2)``, the expression under the root; norms are None where not asked for."""


def evaluate_test(statistics: Statistics, formula: Formula) -> Value:
    """The test of the network (sums over layers first) and of each layer on its own."""
    B, names = statistics.batch_size, list(statistics.dots)
    if not names:
        raise NoValue(statistics.reason("individual", "no layer has individual gradients"))
    if B < 2:
        raise NoValue("a batch of one sample has no variance")
    squared = {name: statistics.gradient_norms[name] ** 2 for name in names}
    layers = {}
    for name in names:
        if squared[name] > 0 or math.isnan(squared[name]):
            layers[name] = rooted(formula(B, statistics.norms.get(name), statistics.dots[name], squared[name]))
    total = sum(squared.values())
    if total == 0:
        raise NoValue("the gradient is zero")
    norms, dots = add_up(statistics.norms, names), add_up(statistics.dots, names)
    return Value(rooted(formula(B, norms, dots, total)), layers)


def add_up(vectors: Mapping[str, Tensor], names: list[str]) -> Any:
    present = [vectors[name] for name in names if name in vectors]
    return sum(present[1:], present[0]) if present else None


def rooted(value: float) -> float:
    return math.sqrt(max(value, 0.0)) if not math.isnan(value) else math.nan

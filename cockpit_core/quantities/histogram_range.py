"""Ranges of histograms: fixed, or following the values by powers of two so that neighbouring records compare."""

from __future__ import annotations

from typing import Any

import numpy as np


def check_range(bounds: Any) -> Any:
    if bounds == "adaptive":
        return bounds
    if isinstance(bounds, (tuple, list)) and len(bounds) == 2 and float(bounds[0]) < float(bounds[1]):
        return float(bounds[0]), float(bounds[1])
    raise ValueError(f"range must be (low, high) with low < high, or 'adaptive', got {bounds!r}")


class AdaptiveRange:
    """``(-h, h)``: doubled when more than 1 % of the values were outside, halved when all lay in the inner quarter."""

    def __init__(self, half: float):
        self.half = half

    @property
    def bounds(self) -> tuple[float, float]:
        return -self.half, self.half

    def follow(self, counts: np.ndarray, outside: int) -> None:
        total = int(counts.sum())
        if total == 0:
            return
        if outside > 0.01 * total and self.half < 2.0**60:
            self.half *= 2
            return
        quarter = len(counts) // 4
        middle = counts[quarter : len(counts) - quarter] if quarter else counts
        inner = len(middle) // 4
        if (
            inner
            and counts[: quarter + inner].sum() + counts[len(counts) - quarter - inner :].sum() == 0
            and self.half > 2.0**-60
        ):
            self.half /= 2

"""Losses of the steps since the last record: each loss is glanced at anyway, so that something is known about a run
that is rarely tracked."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from cockpit_core.signals.reading import Steps, signal

LAST = 16
FEW = 8  # losses, below which a trend says nothing


@signal
def read_recent(losses: Sequence[float], own: Tensor | None, loss: float) -> Steps[dict[str, float]]:
    """Nothing where what the loss module gave (``own``) is not all that was differentiated: a factor, a penalty."""
    if own is not None:
        (given,) = yield [own.double()]  # numpy knows no bfloat16
        if given.size != 1 or not abs(float(given.reshape(())) - loss) <= 1e-4 * abs(loss):
            return {}
    return measure_recent(losses)


def measure_recent(losses: Sequence[float]) -> dict[str, float]:
    """Mean of the last 16 losses and how many they are; of all given losses the highest, and the slope of a straight
    line through them in units of its standard error (below -3: they fall for sure)."""
    if not losses:
        return {}
    values = np.asarray(losses, dtype=np.float64)
    last = values[-LAST:]
    numbers = {"recent_loss": float(last.mean()), "recent_count": float(len(last)), "recent_peak": float(values.max())}
    if len(values) >= FEW:
        numbers["recent_trend"] = measure_trend(values)
    return {name: value for name, value in numbers.items() if math.isfinite(value)}


def measure_trend(values: np.ndarray) -> float:
    places = np.arange(len(values)) - (len(values) - 1) / 2
    centred = values - values.mean()
    spread, slope = float(places @ places), float(places @ centred) / float(places @ places)
    left = centred - slope * places
    error = math.sqrt(max(float(left @ left) / (len(values) - 2), 1e-24 * float(values @ values) + 1e-300) / spread)
    return slope / error

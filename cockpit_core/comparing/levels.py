"""Instruments at equal loss: at equal step one would compare different phases of training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cockpit_core.comparing.curves import get_curve, list_quantities, read_curve, smooth
from cockpit_core.comparing.settings import Setting
from cockpit_core.events.data import RunData

WIDTH = 9  # records that the loss is smoothed over
AROUND = 0.05  # of the run's length, on both sides of the step
FEWEST = 5  # records, if there are as many within ...
FARTHEST = 2  # ... times that


@dataclass(frozen=True)
class Level:
    """Medians around the step where the smoothed loss first falls to ``loss``; one value per setting and quantity."""

    loss: float
    steps: dict[str, float]  # by setting
    values: dict[str, dict[str, float]]  # quantity -> setting -> median over seeds


def find_level(runs: Sequence[RunData]) -> float | None:
    """A tenth of the common way above the lowest loss that all of them reach; None where there is none."""
    lows, highs = [], []
    for run in runs:
        values = smooth(read_curve(run, "Loss").values, WIDTH)
        if len(values) < 3:
            return None
        lows.append(values.min())
        highs.append(values[0])
    low, high = max(lows), min(highs)
    if not low < high:
        return None
    if low > 0 and high > 2 * low:  # over a wide range, a tenth of the way on a logarithmic scale
        return float(low * (high / low) ** 0.1)
    return float(low + 0.1 * (high - low))


def compare_at_level(settings: Sequence[Setting], excluded: set[str]) -> Level | None:
    runs = [run for setting in settings for run in setting.runs]
    loss = find_level(runs)
    if loss is None:
        return None
    places = {id(run): find_step(run, loss) for run in runs}
    steps = {s.name: float(np.median([places[id(run)] for run in s.runs])) for s in settings}
    values: dict[str, dict[str, float]] = {}
    for name in dict.fromkeys(name for run in runs for name in list_quantities(run)):
        if name in excluded or name == "Loss":
            continue
        row = {}
        for setting in settings:
            around = [measure_around(run, name, places[id(run)]) for run in setting.runs]
            finite = [value for value in around if np.isfinite(value)]
            if finite:
                row[setting.name] = float(np.median(finite))
        if row:
            values[name] = row
    return Level(loss, steps, values)


def find_step(run: RunData, loss: float) -> int:
    curve = read_curve(run, "Loss")
    return int(curve.steps[np.argmax(smooth(curve.values, WIDTH) <= loss)])


def measure_around(run: RunData, name: str, step: int) -> float:
    """The median around a step; NaN where nothing was recorded near it: further away is another phase."""
    curve = get_curve(run, name)
    if not len(curve):
        return float("nan")
    away = np.abs(curve.steps - step)
    half = AROUND * max(float(curve.steps[-1]), 1.0)
    near = away <= half
    if near.sum() < FEWEST:
        nearest = np.argsort(away, kind="stable")[:FEWEST]
        near = np.zeros(len(curve), bool)
        near[nearest[away[nearest] <= FARTHEST * half]] = True
    return float(np.median(curve.values[near])) if near.any() else float("nan")

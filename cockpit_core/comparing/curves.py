"""Columns of a run as curves, curves made from other columns, and smoothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from cockpit_core.events.data import RunData

NOT_COMPARED = ("Time", "Parameters", "LearningRate", "MemoryUsage")
# Lengths in the space of the parameters: another network has another space.
IN_PARAMETER_SPACE = ("Distance", "ParamNorm", "UpdateSize", "GradNorm", "GradNormClipped", "TopSampleNorm")
SIGNAL, NOISE_SCALE, RELATIVE_UPDATE, STABILITY = "signal share", "noise scale", "update / weight", "lr lambda / 2"
SHARES = (SIGNAL,)


@dataclass(frozen=True)
class Curve:
    """Values in order of their steps, all finite; ``times`` are seconds since the run began."""

    steps: np.ndarray
    values: np.ndarray
    times: np.ndarray

    def __len__(self) -> int:
        return len(self.steps)


def read_curve(data: RunData, name: str) -> Curve:
    """A column as it is recorded, without what is not finite; empty where the run has none."""
    try:
        steps, values = data.scalars(name)
    except KeyError:
        return EMPTY
    steps, values = np.asarray(steps, np.int64), np.asarray(values, np.float64)
    times = find_times(data, name, steps)
    fine = np.isfinite(values)
    order = np.argsort(steps[fine], kind="stable")
    return Curve(steps[fine][order], values[fine][order], times[fine][order])


EMPTY = Curve(np.empty(0, np.int64), np.empty(0), np.empty(0))


def find_times(data: RunData, name: str, steps: np.ndarray) -> np.ndarray:
    column = data.table.columns.get(name) or data.table.columns.get("log/" + name)
    rows = data.rows
    if column is not None:
        return rows.time[column.get()[0]]
    if not rows.step.size:
        return np.zeros(len(steps))
    order = np.argsort(rows.step, kind="stable")
    return np.interp(steps, rows.step[order], rows.time[order])


def list_quantities(data: RunData) -> list[str]:
    """What can be compared step by step: recorded scalars, then those made from them. The user's metrics come last."""
    heavy = {name for name in data.histogram_names if name not in data.table.columns}
    scalar = [name for name in data.names if name not in (*NOT_COMPARED, *heavy) and "/" not in name]
    logged = [name for name in data.names if name.startswith("log/")]
    derived = [name for name, parts in MADE_OF.items() if all(part in data.names for part in parts)]
    return [*scalar, *derived, *(name.removeprefix("log/") for name in logged)]


def get_curve(data: RunData, name: str) -> Curve:
    return DERIVED[name](data) if name in DERIVED else read_curve(data, name)


def join(first: Curve, second: Curve, combine: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Curve:
    """Two columns of the same run, at the steps that both have."""
    _, i, j = np.intersect1d(first.steps, second.steps, return_indices=True)
    with np.errstate(all="ignore"):
        values = combine(first.values[i], second.values[j])
    fine = np.isfinite(values)
    return Curve(first.steps[i][fine], values[fine], first.times[i][fine])


def read_signal(data: RunData) -> Curve:
    """``1 - NormTest^2``, clipped to [0, 1]: the share of the squared mini-batch gradient that is signal."""
    curve = read_curve(data, "NormTest")
    return replace(curve, values=np.clip(1 - curve.values**2, 0.0, 1.0))


def read_noise_scale(data: RunData) -> Curve:
    """``B NT^2 / (1 - NT^2)``: the batch size at which noise and signal are equal; none where all is noise."""
    curve, batch = read_curve(data, "NormTest"), data.header.batch_size
    return join(curve, curve, lambda a, _: np.where((a < 0.999) & (batch > 0), batch * a**2 / (1 - a**2), np.nan))


def read_relative_update(data: RunData) -> Curve:
    return join(read_curve(data, "UpdateSize"), read_curve(data, "ParamNorm"), lambda a, b: a / b)


def read_stability(data: RunData) -> Curve:
    """``lr lambda_max / 2``: 1 is where gradient descent without momentum becomes unstable."""
    return join(read_curve(data, "HessMaxEV"), read_curve(data, "LearningRate"), lambda a, b: a * b / 2)


DERIVED: dict[str, Callable[[RunData], Curve]] = {
    SIGNAL: read_signal,
    NOISE_SCALE: read_noise_scale,
    RELATIVE_UPDATE: read_relative_update,
    STABILITY: read_stability,
}
MADE_OF = {
    SIGNAL: ("NormTest",),
    NOISE_SCALE: ("NormTest",),
    RELATIVE_UPDATE: ("UpdateSize", "ParamNorm"),
    STABILITY: ("HessMaxEV", "LearningRate"),
}


def smooth(values: np.ndarray, width: int) -> np.ndarray:
    """Running median; at the ends over what there is."""
    half = width // 2
    if half < 1 or len(values) < 3:
        return values
    result = np.array([np.median(values[max(0, i - half) : i + half + 1]) for i in range(min(len(values), 2 * half))])
    if len(values) <= 2 * half:
        return result
    inside = np.median(np.lib.stride_tricks.sliding_window_view(values, 2 * half + 1), axis=1)
    last = range(len(values) - half, len(values))
    return np.concatenate((result[:half], inside, [np.median(values[i - half :]) for i in last]))

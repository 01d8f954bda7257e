"""How well runs did: final and best value of one metric, when they reached a target, how much the learning rate matters."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from cockpit_core.comparing.curves import Curve, read_curve, smooth
from cockpit_core.comparing.settings import Setting
from cockpit_core.events.data import RunData

LESS_IS_BETTER = re.compile(r"loss|error|perplexity|ppl|nll|mse|mae|rmse|bits|wer|cer|fid", re.IGNORECASE)
PREFERRED = ("valid_accuracy", "val_accuracy", "val_acc", "valid_acc", "test_accuracy", "valid_loss", "val_loss")
NEAR_SHARE, NEAR_LOSS = 0.01, 0.1  # as good as the best: one point of a share, or a tenth of a loss


@dataclass(frozen=True)
class Metric:
    name: str
    less_is_better: bool
    target: float | None = None

    def reaches(self, values: np.ndarray) -> np.ndarray:
        assert self.target is not None
        return values <= self.target if self.less_is_better else values >= self.target

    @property
    def worst(self) -> float:
        return math.inf if self.less_is_better else -math.inf


@dataclass(frozen=True)
class Score:
    """One run: a metric that ended as NaN, or a run without any, counts as the worst there is."""

    final: float
    best: float
    best_step: int
    last_step: int
    steps_to_target: float  # inf = not reached, NaN = no target
    seconds_to_target: float
    seconds: float
    diverged: bool


def parse_target(text: str) -> Metric:
    """``valid_accuracy=0.97``; ``<=`` and ``>=`` say explicitly which way is better."""
    match = re.fullmatch(r"\s*(.+?)\s*(<=|>=|=)\s*([^=<>]+?)\s*", text)
    try:
        value = float(match[3]) if match else math.nan
    except ValueError:
        value = math.nan
    if match is None or math.isnan(value):
        raise ValueError(f"a target is written name=number, e.g. valid_accuracy=0.97, got {text!r}")
    less = bool(LESS_IS_BETTER.search(match[1])) if match[2] == "=" else match[2] == "<="
    return Metric(match[1].removeprefix("log/"), less, value)


def choose_metric(runs: Sequence[RunData], wanted: Metric | None) -> Metric:
    """The one asked for; else the first usual name that every run has; else what all logged; else the loss."""
    known = [{name.removeprefix("log/") for name in run.names} for run in runs]
    everywhere = set.intersection(*known) if known else set()
    if wanted is not None:
        if not any(wanted.name in names for names in known):
            listed = ", ".join(sorted(set().union(*known))) or "nothing"
            raise ValueError(f"no run has values called {wanted.name!r}; there are {listed}")
        return wanted
    logged = {name.removeprefix("log/") for run in runs for name in run.names if name.startswith("log/")}
    usual = [name for name in PREFERRED if name in everywhere]
    shared = sorted(everywhere & logged)
    name = next(iter(usual + shared), "Loss")
    return Metric(name, bool(LESS_IS_BETTER.search(name)))


def score(data: RunData, metric: Metric) -> Score:
    curve = read_metric(data, metric.name)
    last = int(data.rows.step[-1]) if data.rows.step.size else 0
    seconds = float(data.rows.time[-1]) if data.rows.time.size else 0.0
    diverged = has_diverged(data)
    if not len(curve):
        nothing = math.nan if metric.target is None else math.inf
        return Score(metric.worst, metric.worst, 0, last, nothing, nothing, seconds, diverged)
    at = int(np.argmin(curve.values) if metric.less_is_better else np.argmax(curve.values))
    steps, clock = math.nan, math.nan
    if metric.target is not None:
        reached = np.flatnonzero(metric.reaches(curve.values))
        steps = float(curve.steps[reached[0]]) if len(reached) else math.inf
        clock = float(curve.times[reached[0]]) if len(reached) else math.inf
    final = metric.worst if ended_broken(data, metric.name) else float(curve.values[-1])
    return Score(final, float(curve.values[at]), int(curve.steps[at]), last, steps, clock, seconds, diverged)


def read_metric(data: RunData, name: str) -> Curve:
    """A mini-batch loss is noisy: it is smoothed over nine records before anything is called final or best."""
    curve = read_curve(data, name)
    return replace(curve, values=smooth(curve.values, 9)) if name == "Loss" else curve


def ended_broken(data: RunData, name: str) -> bool:
    try:
        _, values = data.scalars(name)
    except KeyError:
        return False
    return bool(len(values)) and not math.isfinite(float(values[-1]))


def has_diverged(data: RunData) -> bool:
    try:
        _, losses = data.scalars("Loss")
    except KeyError:
        return False
    return bool(len(losses)) and not math.isfinite(float(losses[-1]))


def median_final(setting: Setting, metric: Metric) -> float:
    return float(np.median([score(run, metric).final for run in setting.runs]))


@dataclass(frozen=True)
class Sensitivity:
    """Final metric against the learning rate, all else equal: medians over seeds, and how wide the good range is."""

    label: str
    rates: list[float]
    finals: list[float]
    best_rate: float
    width: float  # largest over smallest rate in a row around the best one that are as good as it


def measure_sensitivity(settings: Sequence[Setting], metric: Metric) -> list[Sensitivity]:
    families: dict[tuple, list[Setting]] = {}
    for setting in settings:
        first = setting.entries[0].settings
        if is_number(first.get("lr", "")):
            key = tuple(sorted((k, v) for k, v in first.items() if k != "lr"))
            families.setdefault(key, []).append(setting)
    return [describe_family(family, metric) for family in families.values() if len(family) > 1]


def describe_family(family: list[Setting], metric: Metric) -> Sensitivity:
    ordered = sorted(family, key=lambda setting: float(setting.entries[0].settings["lr"]))
    rates = [float(setting.entries[0].settings["lr"]) for setting in ordered]
    finals = [median_final(setting, metric) for setting in ordered]
    best = int(np.argmin(finals) if metric.less_is_better else np.argmax(finals))
    room = abs(finals[best]) * NEAR_LOSS if metric.less_is_better else NEAR_SHARE
    near = [math.isfinite(value) and abs(value - finals[best]) <= room for value in finals]
    low = high = best
    while low > 0 and near[low - 1]:
        low -= 1
    while high + 1 < len(rates) and near[high + 1]:
        high += 1
    values = {key: value for key, value in ordered[0].values.items() if key != "lr"}
    label = " ".join(value if key in ("optimizer", "problem") else f"{key}={value}" for key, value in values.items())
    return Sensitivity(label or ordered[0].entries[0].optimizer, rates, finals, rates[best], rates[high] / rates[low])


def is_number(text: str) -> bool:
    try:
        return float(text) > 0
    except ValueError:
        return False

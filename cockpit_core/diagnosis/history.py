"""What the rules look back at: the first tracked steps, the last ones, and a few extremes of all in between."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from cockpit_core.diagnosis.logged import Logged

EARLY, LATE, LAYERS = 4, 48, 6
SAME = 1e-9  # checksums of the same numbers
GONE = 1e-3  # of the highest learning rate: nothing happens any more
FRESH = 10  # a value from within this many training steps counts as one of the start
SIGNAL = "signal/"
PROBE, PROBES = "signal/probe/", ("line", "mode", "mean", "half", "ahead")
SOON, NEARLY_ALL = 120, 0.9  # steps; share of right answers
RMS_BEGINS, HARMLESS = 20, 0.5
"""Steps at which those of RMSprop are several times as long as they will be; what is no longer than this share of the weights
when that is taken out says nothing of the rate."""
CARRIED = ("ParamNorm", "LearningRate")  # these change slowly: where a step has none, the last one is used


nan = math.nan


@dataclass
class Observation:
    """One tracked step as the log has it; layer vectors are NaN where a layer has no value."""

    step: int
    scalars: Mapping[str, float]
    layers: Mapping[str, np.ndarray] = field(default_factory=dict)
    batch_size: int = 0
    generation: int = 0

    def get(self, name: str) -> float:
        return self.scalars.get(name, nan)


class History:
    """Bounded, whatever the length of the run. ``static`` is what the records that start a run said last."""

    def __init__(self) -> None:
        self.static: dict[str, float] = {}
        self.early: list[Observation] = []
        self.late: deque[Observation] = deque(maxlen=LATE)
        self.count = 0
        self.resumed = False
        self.first: dict[str, float] = {}  # the first value of each column, if it is one of the start
        self.began = -1  # step of the first record
        self.carried: dict[str, float] = {}
        self.vectors: dict[str, deque[np.ndarray]] = {}  # one number per layer, the last few of each name
        self.first_vectors: dict[str, list[np.ndarray]] = {}
        self.names: set[str] = set()
        self.series: dict[
            str, deque[tuple[int, float]]
        ] = {}  # by column: the last values, with the place of their record
        self.of_the_start: dict[
            str, tuple[object, object]
        ] = {}  # what views have made of the first records, and of which
        self.highest: dict[str, float] = {}
        self.lowest: dict[str, float] = {}
        self.first_not_finite = -1
        self.line = [0.0] * 6  # sums for a straight line through all losses: 1, i, L, i i, i L, L L
        self.checksums: deque[float] = deque(maxlen=8)
        self.batches = 0  # how often another batch was seen than at the records before
        self.classes_seen = [math.inf, -math.inf]  # smallest and largest label
        self.target_mean = math.nan  # of the last batch whose targets are known
        self.samples = 0.0  # of the last batch that signals looked at
        self.rate_seen = (-1, math.nan)  # the last learning rate, with its step
        self.rate_gone = -1  # since which step it is below a thousandth of its highest value
        self.probes: dict[str, int] = {}  # how often each was tried
        self.pools: dict[str, tuple[float, float, float]] = {}  # weight, sum and sum of squares over the run
        self.logged = Logged()
        self.finished = False  # the training is over
        self.soon_right = 0  # early records at which nearly all answers were right
        self.in_vain = 0.0  # losses of a training that is over and had no step
        self.rms_decay = 0.0  # of an RMSprop, whose first steps are long; else 0

    def start(self, scalars: Mapping[str, float], step: int, generation: int) -> None:
        self.static = {name.removeprefix(SIGNAL): value for name, value in scalars.items()}
        self.resumed = self.resumed or generation > 0 or step > 0
        self.finished = False

    def add(self, seen: Observation) -> None:
        """Quantities may come at different steps: each column is looked up where it is."""
        seen = self._keep(seen)
        self.count += 1
        if len(self.early) < EARLY:
            self.early.append(seen)
        self.late.append(seen)
        for name, value in seen.scalars.items():
            if value == value:
                known = self.series.get(name)
                if known is None:
                    known = self.series[name] = deque(maxlen=LATE)
                known.append((self.count, value))
                self.names.add(name)
            elif name not in CARRIED:
                self.names.add(name)
        loss = seen.get("Loss")
        if not math.isfinite(loss) and "Loss" in seen.scalars and self.first_not_finite < 0:
            self.first_not_finite = seen.step
        if math.isfinite(loss):
            i = float(self.line[0])
            self.line = [a + b for a, b in zip(self.line, (1.0, i, loss, i * i, i * loss, loss * loss), strict=True)]
        self._note_extremes(seen)
        self.soon_right += seen.step <= self.began + SOON and seen.get(SIGNAL + "accuracy") > NEARLY_ALL
        before, mean = self.target_mean, seen.get(SIGNAL + "target_mean")
        self.target_mean = mean if math.isfinite(mean) else before
        samples = seen.get(SIGNAL + "samples")
        self.samples = samples if samples > 0 else self.samples
        self._pool("target_mean", mean)
        self._pool("target_variance", seen.get(SIGNAL + "target_variance"))
        self._pool("target_jump", mean - before)
        self._pool_rate(seen.step, seen.get("LearningRate"))
        for name in PROBES:
            if PROBE + name in seen.scalars:
                self.probes[name] = self.probes.get(name, 0) + 1
        checksum = seen.get(SIGNAL + "batch_checksum")
        if not math.isnan(checksum):
            self.batches += not any(abs(checksum - other) < SAME for other in self.checksums)
            self.checksums.append(checksum)

    def finish(self, seen: Observation) -> bool:
        """The training is over. Its last record has the losses behind the last tracked step, if there were some. False
        where it was broken off, or where nothing is known."""
        over, in_vain = seen.get(SIGNAL + "finished") == 1, seen.get(SIGNAL + "never_stepped")
        self.finished, self.in_vain = over and self.count > 0, in_vain if over and in_vain > 0 else 0.0
        if self.finished and SIGNAL + "recent_loss" in seen.scalars:
            self.add(replace(seen, layers={}, batch_size=self.late[-1].batch_size))
        return self.finished or self.in_vain > 0

    def note(self, step: int, values: Mapping[str, float]) -> bool:
        """What the user logged, beside the training loss of that time; False where no rule looks at it."""
        last = self.late[-1] if self.late else None
        few = last is None or not last.get(SIGNAL + "recent_count") >= 8
        train = nan if last is None else last.get("Loss") if few else last.get(SIGNAL + "recent_loss")
        return self.logged.add(step, values, train)

    def _pool(self, name: str, value: float, weight: float = 1.0) -> None:
        if math.isfinite(value):
            count, total, squares = self.pools.get(name, (0.0, 0.0, 0.0))
            self.pools[name] = (count + weight, total + weight * value, squares + weight * value * value)

    def _pool_rate(self, step: int, rate: float) -> None:
        """Averages over time, not over records: within a budget, records are close together in some places and far
        apart in others."""
        if not math.isfinite(rate):
            return
        since, before = self.rate_seen
        if step > since >= 0:
            self._pool("rate", (before + rate) / 2, step - since)
        self.rate_seen = (step, rate)
        floor = GONE * self.highest.get("LearningRate", rate)
        if not rate < floor:
            self.rate_gone = -1
        elif self.rate_gone < 0:  # records may be far apart: as if it had fallen evenly from one to the next
            passed = math.log(before / floor) / math.log(before / rate) if rate > 0 and before > floor else 1.0
            self.rate_gone = round(since + passed * (step - since)) if since >= 0 else step

    def _keep(self, seen: Observation) -> Observation:
        """Of the vectors only the last few are kept; what changes slowly is carried forward."""
        self.began = seen.step if self.began < 0 else self.began
        for name, vector in seen.layers.items():
            self.vectors.setdefault(name, deque(maxlen=LAYERS)).append(vector)
            start = self.first_vectors.setdefault(name, [])
            if len(start) < EARLY and seen.step <= self.began + 2 * FRESH:
                start.append(vector)
        scalars = dict(seen.scalars)
        if seen.step <= self.began + FRESH:
            for name, value in scalars.items():
                self.first.setdefault(name, value)
        for name in CARRIED:
            self.carried[name] = scalars.setdefault(name, self.carried.get(name, math.nan))
        return Observation(seen.step, scalars, {}, seen.batch_size, seen.generation)

    def _note_extremes(self, seen: Observation) -> None:
        ratio = seen.get("UpdateSize") / (seen.get("ParamNorm") or math.nan)
        usual = ratio * math.sqrt(1 - self.rms_decay ** (seen.step + 1)) if 0 < self.rms_decay < 1 else ratio
        ratio = nan if usual < HARMLESS and seen.step < RMS_BEGINS and self.rms_decay > 0 else ratio
        for name, value in (("Loss", seen.get("Loss")), ("LearningRate", seen.get("LearningRate")), ("update", ratio)):
            if math.isfinite(value):
                self.highest[name] = max(value, self.highest.get(name, -math.inf))
                self.lowest[name] = min(value, self.lowest.get(name, math.inf))
        peak = seen.get(SIGNAL + "recent_peak")  # of steps that were not tracked
        if peak > self.highest.get("Loss", math.inf):
            self.highest["Loss"] = peak
        low, high = seen.get(SIGNAL + "label_min"), seen.get(SIGNAL + "label_max")
        if low == low:
            self.classes_seen = [min(low, self.classes_seen[0]), max(high, self.classes_seen[1])]

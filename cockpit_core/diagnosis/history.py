"""What the rules look back at: the first tracked steps, the last ones, and a few extremes of all between."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

EARLY, LATE, LAYERS = 4, 48, 6
SIGNAL = "signal/"


@dataclass
class Observation:
    """One tracked step as the log has it; layer vectors are NaN where a layer has no value."""

    step: int
    scalars: Mapping[str, float]
    layers: Mapping[str, np.ndarray] = field(default_factory=dict)
    batch_size: int = 0
    generation: int = 0

    def get(self, name: str) -> float:
        return self.scalars.get(name, math.nan)


class History:
    """Bounded, whatever the length of the run. ``static`` is what the records that start a run said last."""

    def __init__(self) -> None:
        self.static: dict[str, float] = {}
        self.early: list[Observation] = []
        self.late: deque[Observation] = deque(maxlen=LATE)
        self.count = 0
        self.resumed = False
        self.names: set[str] = set()
        self.highest: dict[str, float] = {}
        self.lowest: dict[str, float] = {}
        self.first_not_finite = -1
        self.line = [0.0] * 6  # sums for a straight line through all losses: 1, i, L, i i, i L, L L
        self.checksums: deque[float] = deque(maxlen=8)
        self.classes_seen = [math.inf, -math.inf]  # smallest and largest label
        self.pools: dict[str, list[float]] = {}  # count, sum and sum of squares of what is pooled over the run

    def start(self, scalars: Mapping[str, float], step: int, generation: int) -> None:
        self.static = {name.removeprefix(SIGNAL): value for name, value in scalars.items()}
        self.resumed = self.resumed or generation > 0 or step > 0

    def add(self, seen: Observation) -> None:
        self.count += 1
        if len(self.early) < EARLY:
            self.early.append(seen)
        if self.count > EARLY + LAYERS:
            self.late[-LAYERS].layers = {}  # vectors of many layers are not kept longer
        self.late.append(seen)
        self.names |= seen.scalars.keys()
        loss = seen.get("Loss")
        if not math.isfinite(loss) and "Loss" in seen.scalars and self.first_not_finite < 0:
            self.first_not_finite = seen.step
        if math.isfinite(loss):
            i = float(self.line[0])
            self.line = [a + b for a, b in zip(self.line, (1.0, i, loss, i * i, i * loss, loss * loss), strict=True)]
        self._note_extremes(seen)
        for name in ("target_mean", "target_variance"):
            value = seen.get(SIGNAL + name)
            if math.isfinite(value):
                pool = self.pools.setdefault(name, [0.0, 0.0, 0.0])
                pool[0], pool[1], pool[2] = pool[0] + 1, pool[1] + value, pool[2] + value * value
        rate = seen.get("LearningRate")
        if math.isfinite(rate):
            pool = self.pools.setdefault("rate", [0.0, 0.0, 0.0])
            pool[0], pool[1] = pool[0] + 1, pool[1] + rate
        checksum = seen.get(SIGNAL + "batch_checksum")
        if not math.isnan(checksum):
            self.checksums.append(checksum)

    def _note_extremes(self, seen: Observation) -> None:
        ratio = seen.get("UpdateSize") / (seen.get("ParamNorm") or math.nan)
        for name, value in (("Loss", seen.get("Loss")), ("LearningRate", seen.get("LearningRate")), ("update", ratio)):
            if math.isfinite(value):
                self.highest[name] = max(value, self.highest.get(name, -math.inf))
                self.lowest[name] = min(value, self.lowest.get(name, math.inf))
        low, high = seen.get(SIGNAL + "label_min"), seen.get(SIGNAL + "label_max")
        if low == low:
            self.classes_seen = [min(low, self.classes_seen[0]), max(high, self.classes_seen[1])]

"""What the user logs of data that are not trained on, as far as rules look at it."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

HELD_OUT = re.compile(r"(^|[^a-z])(valid|val|validation|eval|evaluation|test|dev|heldout|holdout)($|[^a-z])")
NAMES = {"loss": re.compile(r"loss|nll|cross_?entropy"), "accuracy": re.compile(r"acc(uracy)?($|[^a-z])")}


class Look(NamedTuple):
    """One logged number, with the loss of the training as it was known then."""

    step: int
    value: float
    train: float


class Looks:
    """The first, the lowest and the last few of one name: bounded, whatever the length of the run."""

    def __init__(self) -> None:
        self.first: Look | None = None
        self.lowest: Look | None = None
        self.last: deque[Look] = deque(maxlen=3)
        self.count = 0

    def add(self, look: Look) -> None:
        self.first = self.first or look
        self.lowest = look if self.lowest is None or look.value < self.lowest.value else self.lowest
        self.last.append(look)
        self.count += 1


class Logged:
    """Losses and accuracies of validation, by what they are; of several names the first that was logged counts."""

    def __init__(self) -> None:
        self.kinds: dict[str, tuple[str, Looks]] = {}

    def add(self, step: int, values: Mapping[str, float], train: float) -> bool:
        """Was there anything that rules look at?"""
        changed = False
        for name, value in values.items():
            kind = kind_of(name)
            if not kind or not math.isfinite(value):
                continue
            known, looks = self.kinds.setdefault(kind, (name, Looks()))
            if known == name:
                looks.add(Look(step, float(value), train))
                changed = True
        return changed

    def looks(self, kind: str) -> Looks | None:
        return self.kinds[kind][1] if kind in self.kinds else None


def kind_of(name: str) -> str:
    """ "loss" or "accuracy" of data that are held out; "" for anything else."""
    plain = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    if not HELD_OUT.search(plain):
        return ""
    return next((kind for kind, pattern in NAMES.items() if pattern.search(plain)), "")

"""Columns of a run up to one tracked step, each looked up where it was recorded. NaN: not known."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from cockpit_core.diagnosis.facts import Facts
from cockpit_core.diagnosis.history import SIGNAL, History, Observation

RECENT = 6
SPARSE = 8  # steps from one record to the next
nan = math.nan


def median(values: Iterable[float]) -> float:
    ordered = sorted([value for value in values if value == value])
    if not ordered:
        return nan
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def mean(values: Iterable[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else nan


def variance(values: Sequence[float]) -> float:
    middle = mean(values)
    return mean((value - middle) ** 2 for value in values) * len(values) / max(1, len(values) - 1)


def ratio(a: float, b: float) -> float:
    return a / b if b else nan


class Reading:
    """``t``: this step; ``n``: tracked steps so far."""

    def __init__(self, history: History, facts: Facts):
        self.history, self.facts = history, facts
        self.t = history.late[-1].step if history.late else 0
        self.n = history.count
        self.late = list(history.late)
        self.latest = next((seen for seen in reversed(self.late) if SIGNAL + "training" in seen.scalars), None)
        self._values: dict[tuple[str, int], list[float]] = {}
        self._columns: dict[str, list[float]] = {}
        told = self.late[-1].batch_size if self.late else 0  # 0: the loss did not tell, where it is a function
        self.knows_batch = told > 0 or history.samples > 0
        self.batch = max(1, told or int(history.samples))
        self.sparse = self.n < self.t / SPARSE  # few records: what lies between them is known by its losses only

    def has_seen(self, count: int) -> bool:
        """So many tracked steps, or as much time in a run that is rarely tracked."""
        return self.n >= count or (self.sparse and self.n >= 3 and self.t >= 5 * count)

    # ---- reading columns: each where it was recorded, because quantities may have their own pace ----

    def static(self, name: str) -> float:
        return self.history.static.get(name, nan)

    def values(self, name: str, count: int = RECENT) -> list[float]:
        """The last values of a column, oldest first."""
        known = self._values.get((name, count))
        if known is None:
            series = self.history.series.get(name)
            pairs = list(islice(reversed(series), count)) if series else []
            before = self.n - len(self.late)  # the last record that is not looked back at any more
            if pairs and pairs[-1][0] <= before:
                pairs = [pair for pair in pairs if pair[0] > before]
            known = [value for _, value in reversed(pairs)]
            self._values[name, count] = known
        return known

    def column(self, name: str) -> list[float]:
        """Of all steps that are looked back at, oldest first; NaN where one has none."""
        known = self._columns.get(name)
        if known is None:
            known = self._columns[name] = [seen.scalars.get(name, nan) for seen in self.late]
        return known

    def last_of(self, look: Callable[[Observation], float], count: int = RECENT) -> list[float]:
        """The last numbers that tracked steps give, oldest first. It looks at no more steps than needed."""
        values: list[float] = []
        for seen in reversed(self.late):
            if (value := look(seen)) == value:
                values.append(value)
                if len(values) == count:
                    break
        values.reverse()
        return values

    def last(self, name: str) -> float:
        values = self.values(name, 1)
        return values[0] if values else nan

    def now(self, name: str) -> float:
        """The signal at the last step that had signals; NaN where it was left out there (a count of nothing)."""
        return self.latest.get(SIGNAL + name) if self.latest is not None else nan

    def typical(self, name: str) -> float:
        """Median of a signal over the last steps that had it."""
        return median(self.values(SIGNAL + name))

    def first(self, name: str) -> float:
        """A signal at the start of the run."""
        return self.history.first.get(SIGNAL + name, nan)

    def every(self, name: str, count: int = RECENT) -> list[float]:
        return self.values(SIGNAL + name, count)

    def ratios(self, above: str, below: str, count: int = RECENT) -> list[float]:
        """The last quotients of two columns that come together."""
        values: list[float] = []
        for seen in reversed(self.late):
            scalars = seen.scalars
            if above in scalars and (value := ratio(scalars[above], scalars.get(below, nan))) == value:
                values.append(value)
                if len(values) == count:
                    break
        values.reverse()
        return values

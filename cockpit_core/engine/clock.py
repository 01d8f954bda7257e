"""Where the time of tracking goes, by kind of work; shared work is split honestly among those who asked for it.

On a device that works beside the host, the host's clock only tells how long it takes to hand work over, and waiting
for our work means waiting for the user's work too. So the device's own events are used there: from the moment the
device starts our work until it has finished. They are read when a step is over, and nobody waits for the user's queue.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch

from cockpit_core.foundation.accelerator import is_capturing, record

Mark = Any
"""A moment: seconds of the host's clock, or an event of the device."""
OVERHEAD = ""


class Clock:
    """Seconds spent on each kind of work within one step ("form", "norms", "histogram", "project gradient", ...), and on
    tracking as a whole (``spent``)."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.overhead = 0.0
        self.device: torch.device | None = None
        self._spans: list[tuple[dict[str, float], Mark, Mark]] = []  # with their shares; not read yet
        self._free: list[Any] = []  # events that may be used again
        self._reference: tuple[Any, float] | None = None  # an event, and its time

    def use(self, device: torch.device | None) -> None:
        """Measure by this device's events from now on; None: by the host's clock."""
        if device is not None and is_capturing(device):
            device = None
        if device != self.device:
            self._read()
            self.device, self._free, self._reference = device, [], None
            if device is not None:
                self._reference = record(device), time.perf_counter()

    def begin(self) -> None:
        """A new step."""
        self._spans = [span for span in self._spans if OVERHEAD not in span[0]]
        self.overhead = 0.0

    # ---- moments ------------------------------------------------------------------------------------------------

    def mark(self) -> Mark:
        if self.device is None:
            return time.perf_counter()
        return record(self.device, self._free.pop() if self._free else None)

    def when(self, mark: Mark) -> float | None:
        """The time of a moment, in seconds; None if the device has not reached it yet. Must be asked in the order of
        the marks."""
        if isinstance(mark, float):
            return mark
        if self._reference is None:  # the model is on another device by now
            return time.perf_counter()
        if not mark.query():
            return None
        event, seconds = self._reference  # the last one that was read: the time between distant events has few digits
        seconds += event.elapsed_time(mark) / 1e3
        self._reference = mark, seconds
        return seconds

    # ---- work ---------------------------------------------------------------------------------------------------

    def timed(self, work: str, function: Callable[..., Any], *args: Any) -> Any:
        start = time.perf_counter() if self.device is None else self.mark()
        try:
            return function(*args)
        finally:
            if isinstance(start, float):
                self.seconds[work] += time.perf_counter() - start
            else:
                self._spans.append(({work: 1.0}, start, self.mark()))

    def add(self, work: str, start: Mark) -> None:
        """This work has been done since then."""
        if isinstance(start, float) and self.device is None:
            self.seconds[work] += time.perf_counter() - start
        else:
            self._note({work: 1.0}, start)

    def timed_shares(self, shares: dict[str, float], function: Callable[..., Any], *args: Any) -> Any:
        start = self.mark()
        try:
            return function(*args)
        finally:
            self._note(shares, start)

    def add_overhead(self, start: Mark) -> None:
        """Tracking has been at work since then."""
        self._note({OVERHEAD: 1.0}, start)

    def _note(self, shares: dict[str, float], start: Mark) -> None:
        end = self.mark()
        if isinstance(start, float) and isinstance(end, float):
            self._add(shares, end - start)
        elif not isinstance(start, float) and not isinstance(end, float):
            self._spans.append((shares, start, end))

    def _add(self, shares: dict[str, float], seconds: float) -> None:
        for work, share in shares.items():
            if work == OVERHEAD:
                self.overhead += share * seconds
            else:
                self.seconds[work] += share * seconds

    # ---- reading ------------------------------------------------------------------------------------------------

    def spent(self, since: Mark) -> float:
        """Seconds spent on tracking at this step: what was noted, and everything since then. Waits for the rest of
        our own work."""
        self._read()
        return self.overhead + self.passed(since)

    def passed(self, since: Mark) -> float:
        """Seconds since then; 0 where the model was moved to another device in between."""
        end = self.mark()
        if isinstance(since, float) or isinstance(end, float):
            return end - since if isinstance(since, float) and isinstance(end, float) else 0.0
        if not end.query():
            end.synchronize()
        return since.elapsed_time(end) / 1e3

    def _read(self) -> None:
        spans, self._spans = self._spans, []
        if spans and not spans[-1][2].query():
            spans[-1][2].synchronize()
        for shares, start, end in spans:
            self._add(shares, start.elapsed_time(end) / 1e3)
            self._free += [start, end]

    def reset(self) -> dict[str, float]:
        self._read()
        seconds, self.seconds = dict(self.seconds), defaultdict(float)
        return seconds


def split_costs(seconds: dict[str, float], users: dict[str, list[str]], total: float) -> dict[str, float]:
    """Costs by quantity. ``users`` maps a kind of work to the quantities that needed it; "form" (forming individual
    gradients) is shared by all kinds of work that read formed gradients; what is left of ``total`` is "shared"."""
    costs: dict[str, float] = defaultdict(float)
    for work, spent in seconds.items():
        names = users.get(work) or ["shared"]
        for name in names:
            costs[name] += spent / len(names)
    costs["shared"] += max(0.0, total - sum(seconds.values()))
    return dict(costs)

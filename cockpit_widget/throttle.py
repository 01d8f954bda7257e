"""When to send: often enough to look alive, rarely enough that neither training nor the server notices.

The browser cannot acknowledge anything while a cell runs, so this is an open loop: a fixed tick, two budgets (bytes and
seconds of our own work), and a schedule for keyframes that grows with the age of the run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

Clock = Callable[[], float]
WAITING = 4  # times the work that a message may take without suspicion


@dataclass(frozen=True)
class Limits:
    """Sizes and rates. A server keeps every message of a closed tab in memory, hence ``bytes_per_second``."""

    rate: float = 5.0  # messages per second in the first minute
    max_rate: float = 10.0
    minute_rate: float = 1.0  # after a minute
    hour_rate: float = 0.2  # after an hour
    message_bytes: int = 256_000
    least_bytes: int = 16_000  # of a message, however old the run
    keyframe_bytes: int = 512_000  # at the end of a run or a cell, and for a page that loads
    interim_bytes: int = 256_000  # of a keyframe in between, which only heals what was lost
    bytes_per_second: float = 50_000.0  # in the first half hour, and then in proportion to 1 / age: O(log T) in all
    full_rate_for: float = 1800.0
    burst_bytes: float = 3_000_000.0  # one minute's worth
    share_of_time: float = 0.012  # of the wall clock, for all that showing costs: the two below are part of it
    after_sending: float = 1.0  # what a message costs once we are done, in times our own work, see ``Throttle.sent``
    every_record: float = 4e-6  # seconds that each record costs training before there is any message
    burst_seconds: float = 0.03  # for a lively start
    longest_pause: float = 60.0
    keyframe_first: float = 1.0  # seconds after the first message
    keyframe_growth: float = 1.5
    keyframe_gap: float = 5.0
    keyframe_longest: float = 600.0
    heavy_gap: float = 2.0  # seconds between messages that carry histograms


class Bucket:
    """A budget that refills at ``rate`` per second up to ``capacity``. It may be overdrawn, and says for how long.

    From the age of ``steady_for`` seconds on the rate falls as 1 / age.
    """

    def __init__(self, rate: float, capacity: float, clock: Clock, steady_for: float = math.inf) -> None:
        self._rate, self._capacity, self._clock, self._steady_for = rate, capacity, clock, steady_for
        self._level, self._start = capacity, clock()
        self._then = self._start

    def rate(self) -> float:
        return self._rate / max(1.0, (self._clock() - self._start) / self._steady_for)

    def spend(self, amount: float) -> None:
        now = self._clock()
        self._level = min(self._capacity, self._level + (now - self._then) * self.rate()) - amount
        self._then = now

    def wait(self) -> float:
        """Seconds until the budget is positive again."""
        self.spend(0.0)
        return max(0.0, -self._level / self.rate())


class Throttle:
    """Says when the next message is due. ``rate=None`` is the default rate, which backs off with the age of the run; a
    rate that the user asked for stays, up to ten per second. Both budgets hold either way. ``next`` is when, by
    ``clock``."""

    def __init__(
        self, rate: float | None = None, *, clock: Clock = time.monotonic, limits: Limits | None = None
    ) -> None:
        self.limits = limits or Limits()
        if rate is not None and not rate > 0:
            raise ValueError(f"refresh_rate must be positive (updates per second), not {rate!r}.")
        self._rate, self.clock = rate, clock
        self._start = self.next = clock()
        self._bytes = Bucket(
            self.limits.bytes_per_second, self.limits.burst_bytes, clock, steady_for=self.limits.full_rate_for
        )
        self._seconds = Bucket(self.limits.share_of_time, self.limits.burst_seconds, clock)

    def due(self) -> bool:
        return self.clock() >= self.next

    def interval(self) -> float:
        """Seconds between two messages at this age, before the budgets have their say."""
        limits, age = self.limits, self.clock() - self._start
        if self._rate is not None:
            return 1.0 / min(self._rate, limits.max_rate)
        rate = limits.rate if age < 60 else limits.minute_rate if age < 3600 else limits.hour_rate
        return 1.0 / rate

    def room(self, messages: int) -> tuple[int, int]:
        """Bytes of a message at this age, and how many such may go at once: no more than the longest pause refills."""
        budget = self._bytes.rate() * self.limits.longest_pause
        size = int(min(self.limits.message_bytes, max(budget, self.limits.least_bytes)))
        return size, max(1, min(messages, int(budget / size)))

    def sent(self, size: int, seconds: float, worked: float, records: int = 0) -> None:
        """Account for a message, or for an attempt that failed, that took so long by the clock and by the processor.

        The clock counts: whatever takes time on the machine takes it from training too. But a long interruption is
        mostly somebody else's: beyond ``WAITING`` times the work it counts a quarter, because our disk or connection
        may be what is slow. And a thread of the kernel still has to send the message. That takes the interpreter away
        from training, which then finds cold caches: as much again. And each of the ``records`` was handed to us. Both
        were measured.
        """
        self._bytes.spend(size)
        limits, own = self.limits, max(min(seconds, WAITING * worked), seconds / WAITING)
        self._seconds.spend(own + limits.after_sending * worked + limits.every_record * records)
        pause = max(self.interval(), self._bytes.wait(), self._seconds.wait())
        self.next = self.clock() + min(pause, self.limits.longest_pause)


class KeyframeSchedule:
    """When to send everything again: after a second, then whenever the age grew by half, O(log T) in all."""

    def __init__(self, limits: Limits, clock: Clock) -> None:
        self._limits, self._clock = limits, clock
        self._start: float | None = None
        self._next = 0.0

    def due(self) -> bool:
        if self._start is None:
            self._start = self._clock()
            self._next = self._start + self._limits.keyframe_first
        return self._clock() >= self._next

    def done(self) -> None:
        now, limits = self._clock(), self._limits
        age = now - (self._start if self._start is not None else now)
        gap = max(limits.keyframe_gap, age * (limits.keyframe_growth - 1.0))
        self._next = now + min(gap, limits.keyframe_longest)

"""What tracking may take, and what it has taken: time earned by training, time spent on measuring."""

from __future__ import annotations

from collections import deque
from statistics import median_low

IDLE = 25e-6
"""Seconds that the hooks of a step take at which nothing is measured, until it is known: the 20 microseconds that are promised,
and some more, for machines on which they find nothing in the cache."""
HIDDEN = 1.5
"""What they cost over what they take themselves: calling them, and what they drive out of the cache. (Measured beside an
untracked twin on a busy machine: 1 to 2.)"""
ENOUGH = 3
"""Samples from which on that is believed."""
LATER = 1.15
"""What a measurement leaves behind is paid later (memory to collect, caches to fill): so much more is billed."""
UNSEEN = 1.3
"""Of the first measurement, whose step cannot be compared with others, so much more."""
PAUSE = 10.0
"""Steps that take so many times the usual are no training: a validation, a cell of a notebook that nobody runs."""
SETTLED = 0.8
"""Of what was promised, so much is spent: clocks are not perfect."""


class Account:
    """``share`` of the time trained is earned. All times are seconds of one monotonic clock."""

    def __init__(self, share: float):
        self.share = share
        self.trained = self.earned = self.spent = 0.0
        self.seen = 0.0  # as ``spent``, without what is billed for later: never more than the time that passed
        self.mark = 0.0  # until when everything is booked
        self.idle_times: deque[float] = deque(maxlen=9)  # of one idle step, by stretch
        self.hooks = IDLE  # of one idle step
        self.samples: deque[float] = deque(maxlen=9)  # of what the hooks of an idle step take themselves

    def open(self, now: float) -> None:
        self.mark = now

    @property
    def balance(self) -> float:
        return self.earned - self.spent

    @property
    def step_time(self) -> float:
        """Of one step without us; 0 while it is not known."""
        return median_low(self.idle_times) if self.idle_times else 0.0

    @property
    def rate(self) -> float:
        """What one idle step brings in."""
        return SETTLED * self.share * self.step_time - self.hooks

    def book_idle(self, steps: int, now: float) -> None:
        """So many steps passed without us."""
        taken, self.mark = now - self.mark, now
        own = min(steps * self.hooks, taken)
        self._earn(taken - own, steps)  # by what was usual before: a pause is no step
        if steps > 0:
            self.idle_times.append((taken - own) / steps)
        self.spent += own
        self.seen += own

    def book_step(self, known: float, steps: int, now: float) -> float:
        """One step at which we measured, the last of so many. ``known``: what our own clocks saw; the rest shows in how
        long it took."""
        taken, self.mark = now - self.mark, now
        usual = self.step_time * steps
        longer = max(0.0, taken - usual)
        if not usual:
            cost = LATER * UNSEEN * known
        elif not known:  # it was to be measured, and was not
            cost = longer
        else:
            cost = LATER * max(known, min(longer, 2 * known))
        self._earn(usual or max(0.0, taken - cost), steps)
        self.spent += cost + (steps - 1) * self.hooks
        self.seen += min(taken, max(known, min(cost, longer)) + (steps - 1) * self.hooks)
        return cost

    def note_hooks(self, seconds: float) -> None:
        """So long the hooks of one idle step took."""
        self.samples.append(seconds)
        if len(self.samples) >= ENOUGH:
            self.hooks = HIDDEN * median_low(self.samples)

    def book_planning(self, now: float) -> None:
        """Deciding, and putting hooks on or off."""
        self.spent += now - self.mark
        self.seen += now - self.mark
        self.mark = now

    def _earn(self, trained: float, steps: int) -> None:
        usual = self.step_time
        if usual and steps:
            trained = min(trained, PAUSE * usual * steps)
        self.trained += trained
        self.earned += SETTLED * self.share * trained

    def limit(self, most: float) -> None:
        """Nobody saves more than what is to be bought: a long rest is no reason to measure for long."""
        self.earned = min(self.earned, self.spent + most)

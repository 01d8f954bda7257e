"""What tracking may take, and what it has taken: time earned by training, time spent on measuring."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from statistics import median_low

IDLE = 25e-6
"""Seconds that the hooks take at a step where nothing is measured, until that is known: the 20 microseconds that are
promised, and some more for machines with cold caches."""
HIDDEN = 4.0
"""What they really cost over the time they take themselves, undisturbed: calling them, and what they drive out of the cache.
(Measured beside untracked twins in turns, logistic regression: 24 to 27 microseconds where the functions take 7; two hooks
of torch that do nothing take 5.)"""
LISTENING = 0.3
"""The share of what is earned that hooks may take. Where they would take more, only some losses are looked at: what they
would take pays for records."""
SELDOM = 16
"""At least one loss of this many is."""
ENOUGH = 3
"""From this many samples on, that is believed."""
LATER = 1.15
"""What a measurement leaves behind is paid for later (memory to collect, caches to fill): this much more is billed."""
UNSEEN = 1.3
"""The same for the first measurement, whose step cannot be compared with others."""
PAUSE = 10.0
"""Steps that take this many times the usual are not training: a validation, a notebook cell that was left alone."""
SETTLED = 0.8
"""The share of what was promised that is spent: clocks are not perfect."""


def undisturbed(samples: Iterable[float]) -> float:
    """The lower quartile: what other processes do while a few microseconds are timed only ever adds to them."""
    ordered = sorted(samples)
    return ordered[(len(ordered) - 1) // 4]


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
        self.of_losses: deque[float] = deque(maxlen=9)  # the part of it that goes into glancing at a loss
        self.may_rest = False
        self.every = 1  # of so many idle steps, one loss is glanced at

    def open(self, now: float) -> None:
        self.mark = now

    @property
    def balance(self) -> float:
        return self.earned - self.spent

    @property
    def step_time(self) -> float:
        """The time of one step without us; 0 while it is not known."""
        return median_low(self.idle_times) if self.idle_times else 0.0

    @property
    def rate(self) -> float:
        """What one idle step earns."""
        return SETTLED * self.share * self.step_time - self.hooks

    def book_idle(self, steps: int, now: float) -> None:
        """This many steps passed without us."""
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

    def note_hooks(self, seconds: float, of_loss: float = 0.0) -> None:
        """How long the hooks of one idle step took, and of that the hook on the loss."""
        self.samples.append(seconds)
        self.of_losses.append(of_loss)
        if len(self.samples) < ENOUGH:
            return
        whole = HIDDEN * undisturbed(self.samples)
        loss = min(whole, HIDDEN * undisturbed(self.of_losses))
        allowed = LISTENING * self.share * self.step_time
        self.every = 1
        if self.may_rest and loss and 0 < allowed < whole:
            self.every = min(SELDOM, math.ceil(loss / max(allowed - (whole - loss), loss / SELDOM)))
        self.hooks = whole - loss + loss / self.every

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
        """No more is saved than what the next measurement costs: a long rest is no reason to measure for long."""
        self.earned = min(self.earned, self.spent + most)

"""Who decides on triggers, stops and the budget: one process at once, several at the end of a tracked step, all alike."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass
class Spent:
    """Seconds that tracking took, of those that have passed since training began."""

    seconds: float
    elapsed: float


@dataclass
class Wish:
    """What depends on the clock, loss or user of one rank, and is asked of all of them."""

    trigger: str = ""
    stop: bool = False
    spent: Spent | None = None


@dataclass
class Agreed:
    """What all of them do from the next step on; nothing is measured before step ``rests_until``."""

    trigger: str
    rests_until: int


class Decisions:
    """For one process: what it wants is done at once."""

    should_stop = False

    def trigger(self, reason: str, act: Callable[[str], None]) -> None:
        """The user wants the next step on record."""
        act(reason)

    def spike(self, reason: str, act: Callable[[str], None]) -> None:
        """A loss is out of line."""
        act(reason)

    def stop(self) -> None:
        self.should_stop = True

    def settle(self, step: int, spent: Spent, act: Callable[[Agreed], None]) -> None:
        """The tracked step ``step`` is over: what all processes agree on, if there is anything to agree on."""


class JointDecisions(Decisions):
    """For several processes: the others have seen another loss and another clock, and would not follow. A wish waits
    until all of them talk."""

    def __init__(self, gather: Callable[[str, Any], list[Any]], budget: float | None):
        self.gather, self.budget, self.wish = gather, budget, Wish()

    def trigger(self, reason: str, act: Callable[[str], None]) -> None:
        self.wish.trigger = reason

    def spike(self, reason: str, act: Callable[[str], None]) -> None:
        self.wish.trigger = self.wish.trigger or reason

    def stop(self) -> None:
        self.wish.stop = True

    def settle(self, step: int, spent: Spent, act: Callable[[Agreed], None]) -> None:
        """Anybody's trigger or stop counts; the clock is that of rank 0."""
        wish, self.wish = self.wish, Wish()
        wish.spent = spent
        answers: list[Wish] = self.gather("end of step", wish)
        trigger = next((answer.trigger for answer in answers if answer.trigger), "")
        first = answers[0].spent
        rests = rest_until(first, step, self.budget) if self.budget is not None and first is not None else 0
        self.should_stop = self.should_stop or any(answer.stop for answer in answers)
        act(Agreed(trigger, rests))


def rest_until(spent: Spent, step: int, budget: float) -> int:
    """The step at which the budget allows measuring again, if steps take as long as they did so far."""
    missing = spent.seconds / budget - spent.elapsed
    return step + 1 + max(0, math.ceil(missing / max(spent.elapsed / (step + 1), 1e-9)))

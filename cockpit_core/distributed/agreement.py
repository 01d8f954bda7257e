"""What the processes agree on at the end of a tracked step."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cockpit_core.distributed.group import Group


@dataclass
class Wish:
    """Decisions that depend on one rank's clock, loss or user, made by all of them alike."""

    trigger: str
    stop: bool
    seconds: float
    elapsed: float


def agree(group: Group, wish: Wish) -> Wish:
    """Anybody's trigger or stop counts; the clock is that of rank 0."""
    answers = group.gather("end of step", wish)
    trigger = next((answer.trigger for answer in answers if answer.trigger), "")
    return Wish(trigger, any(answer.stop for answer in answers), answers[0].seconds, answers[0].elapsed)


def rest_until(wish: Wish, step: int, budget: float) -> int:
    """The step at which the budget allows to measure again, if steps take as long as they did so far."""
    missing = wish.seconds / budget - wish.elapsed
    return step + 1 + max(0, math.ceil(missing / max(wish.elapsed / (step + 1), 1e-9)))

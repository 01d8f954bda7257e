"""At which steps to track: a schedule is a function of the step; an interval is a number of steps."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable

Schedule = Callable[[int], bool]
NEVER = 2**63


class _Named:
    """A schedule that can say in words what it does, and which step comes next after a given one (None: none does)."""

    def __init__(self, decide: Schedule, words: str, following: Callable[[int], int | None]):
        self.decide, self.words, self.following = decide, words, following

    def __call__(self, step: int) -> bool:
        return self.decide(step)

    def __str__(self) -> str:
        return self.words


def linear(interval: int, offset: int = 0) -> Schedule:
    """Every ``interval``-th step, from ``offset`` on."""
    if interval < 1:
        raise ValueError(f"interval must be at least 1, got {interval}")
    words = (
        "every step"
        if interval == 1 and offset == 0
        else f"every {interval} steps" + (f" from {offset}" if offset else "")
    )
    return _Named(
        lambda step: step >= offset and (step - offset) % interval == 0,
        words,
        lambda step: offset if step < offset else step + interval - (step - offset) % interval,
    )


def within(share: float) -> Schedule:
    """As often as this share of the training time allows: the budget decides."""
    return _Named(lambda step: True, f"within {100 * share:.3g} % of the time", lambda step: step + 1)


def logarithmic(start: float, end: float, steps: int = 300, base: float = 10, init: bool = True) -> Schedule:
    """``steps`` points spaced evenly in the exponent from ``base**start`` to ``base**end``; ``init`` adds step 0.

    ``logarithmic(0, 5)`` tracks densely at first and up to step 100,000.
    """
    if steps < 1 or base <= 1 or end < start:
        raise ValueError(
            f"logarithmic needs steps >= 1, base > 1 and start <= end, got {steps}, {base}, {start}, {end}"
        )
    gap = (end - start) / max(steps - 1, 1)
    points = {math.floor(base ** (start + k * gap) + 1e-9) for k in range(steps)}
    if init:
        points.add(0)
    words = f"{len(points)} steps, logarithmic from {min(points)} to {max(points)}"
    order = sorted(points)
    return _Named(points.__contains__, words, lambda step: next(iter(order[bisect_right(order, step) :]), None))


def as_schedule(schedule: int | Schedule, name: str = "schedule") -> Schedule:
    if isinstance(schedule, bool) or not (isinstance(schedule, int) or callable(schedule)):
        raise TypeError(f"{name} must be an interval in steps or a function of the step, got {schedule!r}")
    if isinstance(schedule, int) and schedule < 1:
        raise ValueError(
            f"{name} is an interval of at least 1 step, got {schedule}; leave a quantity out to not track it"
        )
    return linear(schedule) if isinstance(schedule, int) else schedule


def find_next(schedule: Schedule, step: int) -> int:
    """The step after ``step`` at which it has to be asked again. For a function of the user that is the very next
    one."""
    if not isinstance(schedule, _Named):
        return step + 1
    following = schedule.following(step)
    return NEVER if following is None else following


def describe(schedule: Schedule) -> str:
    return str(schedule) if isinstance(schedule, _Named) else getattr(schedule, "__name__", "custom")

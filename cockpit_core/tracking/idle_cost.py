"""How long the hooks take at a step where nothing is measured: timed now and then, on this machine, in this loop."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from cockpit_core.engine.hooks import Hook

FIRST = 3
"""Steps that are timed at once when a run begins."""


class IdleCost:
    """``note`` is told the seconds that all ``hooks`` took at one step, and those of the first. Nothing is timed unless
    ``sample`` was called."""

    def __init__(self, hooks: Sequence[Hook], note: Callable[[float, float], None]):
        self.hooks, self.note = [(hook, hook.function) for hook in hooks], note
        self.taken: dict[int, float] = {}
        self.rounds = 0
        self.first = FIRST

    def sample(self) -> None:
        """A call of each of them, after the first: that one comes after a step was planned, which takes a hundred times as
        long as an idle hook and drives it out of the cache."""
        self.taken.clear()
        self.rounds += 1
        for place, (hook, function) in enumerate(self.hooks):
            hook.function = Timed(self, place, function)

    def stop(self) -> None:
        """The next step is measured, so its hooks are not idle, and the one that has just planned it was not either."""
        self.taken.clear()
        self.rounds += 1
        for place in range(len(self.hooks)):
            self.restore(place)

    def took(self, place: int, seconds: float) -> None:
        self.taken[place] = seconds
        if len(self.taken) == len(self.hooks):
            self.note(sum(self.taken.values()), self.taken[0])
            self.taken.clear()
            if self.first > 1:  # one sample is not believed, and the next plan may be made a hundred steps later
                self.first -= 1
                for other, (hook, function) in enumerate(self.hooks):
                    hook.function = Timed(self, other, function, is_first=False)

    def restore(self, place: int) -> None:
        hook, function = self.hooks[place]
        hook.function = function


class Timed:
    """Takes the place of a hook's function until one call is timed. Holds no references: a hook must not keep a run alive."""

    def __init__(self, cost: IdleCost, place: int, function: Callable[..., Any], is_first: bool = True):
        self.cost, self.place, self.function = weakref.ref(cost), place, function
        self.is_first = is_first

    def __call__(self, *args: Any) -> Any:
        cost, is_first, self.is_first = self.cost(), self.is_first, False
        if cost is None or is_first:
            return self.function(*args)
        cost.restore(self.place)  # first: what is called may ask for the next sample
        began, rounds = time.perf_counter(), cost.rounds
        try:
            return self.function(*args)
        finally:
            if cost.rounds == rounds:  # else this step was planned anew, which is booked separately
                cost.took(self.place, time.perf_counter() - began)

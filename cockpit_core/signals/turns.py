"""Which records carry signals: where every step is on record, a few in a row say the same thing."""

from __future__ import annotations

FIRST = 12
"""So many records carry them all."""
GAPS = (3, 5, 4, 5)
"""Training steps from one record with signals to the next, then in turn. Their sum is prime: of batches that come around in a
fixed order, each has its turn."""


class Turns:
    """One for each run."""

    def __init__(self) -> None:
        self.taken = 0
        self.last = -1

    def rests_at(self, step: int, *, asked_for: bool) -> bool:
        """Does a record at this step go without? Not one that somebody or something ``asked_for``."""
        if asked_for or self.taken < FIRST or step < self.last:
            return False
        return step - self.last < GAPS[self.taken % len(GAPS)]

    def take(self, step: int) -> None:
        self.taken, self.last = self.taken + 1, step

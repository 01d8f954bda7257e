"""What is booked once its time is known: at once by the host's clock, later where a device has not got there yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from cockpit_core.engine.clock import Clock, Mark

Booking = Callable[[float], object]


class Ledger:
    """Bookings in their order. Nobody waits for the device: an account may lag behind by what lies in its queue."""

    def __init__(self, clock: Clock):
        self.clock = clock
        self.waiting: deque[tuple[Mark, Booking]] = deque()

    def add(self, mark: Mark, book: Booking) -> None:
        self.waiting.append((mark, book))
        self.settle()

    def settle(self) -> None:
        while self.waiting:
            seconds = self.clock.when(self.waiting[0][0])
            if seconds is None:
                return
            self.waiting.popleft()[1](seconds)

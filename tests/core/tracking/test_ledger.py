"""What is booked late is booked in its order, with the time at which it happened."""

from __future__ import annotations

from cockpit_core.engine.clock import Clock, Mark
from cockpit_core.tracking.account import Account
from cockpit_core.tracking.ledger import Ledger


class Behind(Clock):
    """Of a device that has come as far as ``reached``; its marks are texts that hold seconds."""

    reached = 0.0

    def when(self, mark: Mark) -> float | None:
        return float(mark) if float(mark) <= self.reached else None


def test_bookings_wait_for_the_device_and_keep_their_order() -> None:
    clock = Behind()
    account, ledger = Account(0.1), Ledger(clock)
    ledger.add("0", account.open)
    ledger.add("2", lambda now: account.book_idle(4, now))
    ledger.add("3", lambda now: account.book_step(0.4, 1, now))
    assert (account.trained, account.spent) == (0, 0)
    clock.reached = 2.5
    ledger.settle()
    assert abs(account.step_time - 0.5) < 1e-3
    before = account.spent
    clock.reached = 3.0
    ledger.settle()
    assert 0.4 < account.spent - before < 0.6  # a step of 1 s, of which 0.5 are usual
    assert not ledger.waiting


def test_the_clock_of_the_host_books_at_once() -> None:
    clock, booked = Clock(), []
    Ledger(clock).add(clock.mark(), booked.append)
    assert len(booked) == 1

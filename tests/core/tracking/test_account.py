"""What tracking has taken, by two measures: what is billed against a budget, and what is told."""

from __future__ import annotations

from cockpit_core.tracking.account import Account


def test_what_is_told_is_never_more_than_the_time_that_passed() -> None:
    """A page once said "tracking 110 %": what is billed for later was told as spent."""
    account = Account(0.1)
    account.open(0.0)
    now = 0.0
    for known in (0.99, 0.95, 0.99):  # nearly all of a second is ours
        now += 1.0
        account.book_step(known, 1, now)
    assert account.spent > now
    assert 0.95 * 3 <= account.seen <= now


def test_idle_steps_and_planning_are_told_as_they_are_billed() -> None:
    account = Account(0.1)
    account.open(0.0)
    account.book_idle(100, 1.0)
    account.book_planning(1.25)
    assert account.seen == account.spent > 0.25

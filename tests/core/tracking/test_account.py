"""What tracking has taken, by two measures: what is billed against a budget, and what is told."""

from __future__ import annotations

from pathlib import Path

from cockpit_core.tracking.account import ENOUGH, HIDDEN, IDLE, Account
from cockpit_core.tracking.idle_cost import Timed
from tests.training import start


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


def test_what_idle_steps_take_is_measured() -> None:
    """It was assumed: on a slow machine a budget was spent twice."""
    account = Account(0.1)
    account.open(0.0)
    assert account.hooks == IDLE
    for seconds in (50e-6, 40e-6, 9e-3):  # once somebody else had the processor
        account.note_hooks(seconds)
    assert account.hooks == HIDDEN * 50e-6
    account.book_idle(100, 1.0)
    assert account.spent == 100 * HIDDEN * 50e-6


def test_the_hooks_of_idle_steps_are_timed_now_and_then(tmp_path: Path) -> None:
    training = start("mlp")
    with training.track(tmp_path / "run", config="economy", schedule=20) as run:
        training.run(training.batches(100))
        account, loss_hooks = run._tracker.pace.account, list(training.loss_fn._forward_hooks.values())
        assert len(account.samples) >= ENOUGH
        assert all(1e-7 < seconds < 0.1 for seconds in account.samples)
        assert not isinstance(loss_hooks[0].function, Timed)  # a step after the last sample
    assert run.data.scalars("Loss")[0].tolist() == [0, 20, 40, 60, 80]

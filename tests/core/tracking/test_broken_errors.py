"""Errors that cannot be shown, are no Exception, or come from whoever listens: each is its own affair alone."""

from __future__ import annotations

import math
import signal
import warnings
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import cockpit_core
from cockpit_core.foundation.faults import text_of
from cockpit_core.quantities import NoValue, Quantity, Statistics
from tests.training import by_step, quantities, start


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class UnspeakableReason(NoValue):
    __str__ = __repr__ = Unspeakable.__str__


class Panic(BaseException):
    """What a panic in compiled code looks like: no Exception."""


class Surrogate(Exception):
    def __str__(self) -> str:
        return "half a character: \ud800"


def failing(error: Callable[[], BaseException]) -> Quantity:
    class Failing(Quantity):
        def measure(self, statistics: Statistics) -> float:
            raise error()

    return Failing()


@pytest.mark.parametrize("error", [Unspeakable, UnspeakableReason, Panic, Surrogate, lambda: ValueError("x" * 10**6)])
def test_quantity_that_fails_takes_nothing_with_it(error: Callable[[], BaseException], tmp_path: Path) -> None:
    training = start("mlp")
    config = [failing(error), *quantities("Loss", "GradNorm", "UpdateSize")]
    with (
        warnings.catch_warnings(record=True) as said,
        training.track(tmp_path / "run", config=config, on_error="warn") as run,
    ):
        training.run(training.batches(3))
    assert len(said) <= 1
    data = cockpit_core.load(tmp_path / "run")
    for name in ("Loss", "GradNorm", "UpdateSize"):
        assert list(by_step(data, name)) == [0, 1, 2]
    assert data.status == "finished"
    assert run._tracker.closed
    assert data.broken == 0
    told = [notice.quantity for notice in data.notices] + [missing.name for missing in data.missing]
    assert "Failing" in told


def test_text_of_an_error_that_has_none() -> None:
    assert text_of(Unspeakable()) == "(this error cannot be shown: its __str__ and __repr__ raise)"
    assert text_of(Surrogate()) == "half a character: ?"
    assert text_of(ValueError("as it is")) == "as it is"


def test_warning_that_cannot_be_shown_ends_no_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise BrokenPipeError("the terminal is gone")

    training = start("mlp")
    run = training.track(tmp_path / "run", config=[failing(Unspeakable), *quantities("Loss")], on_error="warn")
    with monkeypatch.context() as patch, warnings.catch_warnings():
        patch.setattr(warnings, "showwarning", fail)
        training.run(training.batches(2))
    run.close()
    assert list(by_step(run.data, "Loss")) == [0, 1]


def test_error_of_the_user_that_cannot_be_shown_is_let_through(tmp_path: Path) -> None:
    training = start("mlp")

    def batches_that_fail() -> Iterator[Any]:
        yield from training.batches(1)
        raise Unspeakable

    with pytest.raises(Unspeakable), training.track(tmp_path / "run", config=quantities("Loss")):
        training.run(batches_that_fail())
    assert cockpit_core.load(tmp_path / "run").error.startswith("Unspeakable: (this error cannot be shown")


@pytest.mark.parametrize("error", [Unspeakable, Panic])
def test_subscriber_that_fails_takes_nothing_with_it(error: type[BaseException], tmp_path: Path) -> None:
    def fail() -> None:
        raise error

    training = start("mlp")
    with training.track(tmp_path / "run", config=quantities("Loss")) as run:
        run.subscribe(fail)
        training.run(training.batches(2))
    assert list(by_step(run.data, "Loss")) == [0, 1]
    assert run._tracker.log.subscriber_errors == 3


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_whoever_wants_to_stop_is_heard(error: type[BaseException], tmp_path: Path) -> None:
    training = start("mlp")
    with training.track(tmp_path / "run", config=[failing(error)], on_error="warn") as run, pytest.raises(error):
        training.run(training.batches(1))
    assert run._tracker.closed


class Alarm(Exception):
    """What a user's own handler raises: a time limit, a notice before the job is ended."""


def test_signal_of_the_user_is_heard_while_we_measure(tmp_path: Path) -> None:
    class Slow(Quantity):
        def measure(self, statistics: Statistics) -> float:
            signal.raise_signal(signal.SIGUSR1)
            return 0.0

    def handle(number: int, frame: Any) -> None:
        raise Alarm

    training = start("mlp")
    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with training.track(tmp_path / "run", config=[Slow()], on_error="warn"), pytest.raises(Alarm):
            training.run(training.batches(1))
    finally:
        signal.signal(signal.SIGUSR1, before)


# ---- run.log ---------------------------------------------------------------------------------------------------------


def test_number_too_large_for_a_float_is_infinite(tmp_path: Path) -> None:
    training = start("mlp")
    with training.track(tmp_path / "run", config=quantities("Loss")) as run:
        for number, value in enumerate((10**400, -(10**400), Fraction(10**400, 3), Decimal("1e400"))):
            with pytest.warns(UserWarning, match=rf"run\.log\(x{number}=\.\.\.\) is too large for a float"):
                run.log(**{f"x{number}": value})
        training.run(training.batches(1))
    assert [run.data.scalars(f"x{number}")[1].item() for number in range(4)] == [
        math.inf,
        -math.inf,
        math.inf,
        math.inf,
    ]


def test_numbers_of_every_kind_can_be_logged(tmp_path: Path) -> None:
    values = [
        *(1, 2.0, True, np.float32(4), np.int64(5), np.array(6), np.array([7.0]), Decimal("8"), Fraction(9)),
        *(torch.tensor(10.0), torch.ones(1, requires_grad=True) * 11, torch.tensor([[12]]), math.inf, math.nan),
    ]
    training = start("mlp")
    with training.track(tmp_path / "run", config=quantities("Loss")) as run:
        for value in values:
            run.log(x=value)
    expected = [1, 2, 1, 4, 5, 6, 7, 8, 9, 10, 11, 12, math.inf, math.nan]
    np.testing.assert_array_equal(run.data.scalars("x")[1], expected)


@pytest.mark.parametrize("value", ["text", None, [1, 2], torch.ones(3), np.ones(2), 1j, object(), torch.ones(0)])
def test_what_is_no_number_is_named(value: Any, tmp_path: Path) -> None:
    with start("mlp").track(tmp_path / "run", config=quantities("Loss")) as run:
        with pytest.raises(TypeError, match=r"run\.log\(x=\.\.\.\) takes a number, got"):
            run.log(y=1, x=value)
        assert "log/y" not in run.data.names

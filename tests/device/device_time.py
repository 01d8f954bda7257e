"""What is told apart on the stand-in device: the user's queue from our work, and a loss that breaks from one that waits."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cockpit_core
from cockpit_core.engine.clock import Clock
from cockpit_core.tracking.arriving import SLOTS, Arriving
from tests.device.on_device import STAND_IN, start
from tests.training import by_step

DEVICE = STAND_IN.device


# ---- costs -----------------------------------------------------------------------------------------------------------


class Busy(nn.Module):
    """Keeps the device busy for ``seconds`` in each forward pass; the host goes on."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.linear, self.seconds = nn.Linear(4, 3), seconds

    def forward(self, x: Tensor) -> Tensor:
        STAND_IN.compute(self.seconds)
        return self.linear(x)


def train(folder: Path, steps: int, seconds: float, waits: bool = False, **options: Any) -> cockpit_core.Run:
    model, loss_fn = Busy(seconds).to(DEVICE), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(8, 4, device=DEVICE), torch.randint(3, (8,), device=DEVICE)
    with cockpit_core.track(model, loss_fn, optimizer, folder, on_error="raise", **options) as run:
        for _ in range(steps):
            optimizer.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
            if waits:
                loss.item()
    return run


def test_clock_bills_what_the_device_did_and_not_the_queue_before() -> None:
    clock = Clock()
    clock.use(DEVICE)
    STAND_IN.compute(0.1)  # the user's
    began = clock.mark()

    def measure() -> float:
        STAND_IN.compute(0.02)
        return torch.ones(1, device=DEVICE).item()  # waits for both

    clock.timed("norms", measure)
    clock.timed_shares({"norms": 0.25, "form": 0.75}, STAND_IN.compute, 0.04)
    spent, seconds = clock.spent(began), clock.reset()
    assert spent == pytest.approx(0.06)
    assert seconds == pytest.approx({"norms": 0.03, "form": 0.03})


def test_moments_are_known_when_the_device_has_come_by() -> None:
    clock = Clock()
    clock.use(DEVICE)
    first = clock.mark()
    STAND_IN.compute(0.05)
    second = clock.mark()
    began = clock.when(first)
    assert clock.when(second) is None
    torch.ones(1, device=DEVICE).item()
    assert clock.when(second) - began == pytest.approx(0.05)  # type: ignore[operator]


@pytest.mark.alone
def test_the_queue_of_the_user_is_not_billed_to_tracking(tmp_path: Path) -> None:
    """Steps of 60 ms on the device that nobody waits for, and then a tracked one, which does."""
    with STAND_IN.each_takes(1e-5):
        data = train(tmp_path / "run", 9, 0.06, config=["Loss", "GradNorm"], schedule=4).data
    (steps, whole), (_, total) = data.scalars("cost/step"), data.scalars("cost/run")
    assert steps.tolist() == [0, 4, 8]
    ours = (total[1:] - total[:-1]) / 1.15  # the account adds what is paid later
    assert (whole[1:] > 0.06).all()
    assert (whole[1:] < 0.066).all()
    assert (ours < 0.01).all(), ours
    assert (ours > 2e-4).all(), ours


@pytest.mark.alone
@pytest.mark.parametrize("waits", [False, True])
def test_budget_is_used_though_nobody_waits_for_the_device(waits: bool, tmp_path: Path) -> None:
    """A record takes about 2 ms, on a busy machine 5, and a step 20. Without waiting the account lags behind by the ten steps
    in the queue. One slow record may overdraw it: what it costs is known only once it is paid."""
    train(tmp_path / "first", 3, 0.001, config=["Loss", "GradNorm"])  # loads what is needed
    with STAND_IN.each_takes(1e-5):
        run = train(tmp_path / "run", 200, 0.02, waits, config=["Loss", "GradNorm"], budget=0.02)
    account = run._tracker.pace.account
    assert 0.014 < account.step_time < 0.021  # less what the hooks of an idle step are billed: 4 times 0.2 to 1 ms here
    assert 0.007 * account.trained <= account.spent <= 0.02 * account.trained + 0.01
    assert len(by_step(run.data, "Loss")) >= 6


# ---- losses ----------------------------------------------------------------------------------------------------------


def test_losses_arrive_in_their_order_and_nobody_waits() -> None:
    Arriving().send(torch.zeros((), device=DEVICE))  # the first one loads what is needed
    torch.accelerator.synchronize()
    arriving, before = Arriving(), STAND_IN.waits
    STAND_IN.compute(0.5)
    for number in range(SLOTS + 3):
        arriving.send(torch.full((), float(number), device=DEVICE))
    assert arriving.take() == []
    assert STAND_IN.waits == before
    torch.accelerator.synchronize()
    assert arriving.take() == [(float(number), SLOTS - 1 - number) for number in range(SLOTS)]
    arriving.send(torch.full((), 7.0, device=DEVICE, dtype=torch.float16))
    assert [value for value, _ in arriving.take()] == [7.0]


def by_module(training: Any) -> Any:
    return training


def by_function(training: Any) -> Any:
    training.loss_fn = None
    return training


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("value", [math.nan, 1e4])
@pytest.mark.parametrize("way", [by_module, by_function])
def test_a_loss_that_breaks_is_noticed_a_step_later(way: Callable, value: float, tmp_path: Path) -> None:
    training = way(start("mlp", DEVICE, 40, "sgd"))
    for inputs, _ in training.batches[33:34] if math.isfinite(value) else training.batches[33:]:
        inputs[0] = value
    _, data = training.run_tracked(tmp_path / "run", config="economy", schedule=50)
    assert list(by_step(data, "Loss")) == [0, 34, 35]
    (notice,) = [notice for notice in data.notices if notice.kind == "trigger"]
    assert notice.step == 34
    assert "one loss ago" in notice.message


def test_steps_that_are_not_tracked_do_not_wait(tmp_path: Path) -> None:
    training = start("mlp", DEVICE, 12, "sgd")
    heard: list[str] = []
    _ = training.run()  # all is loaded
    with cockpit_core.track(training.model, training.loss_fn, training.optimizer, tmp_path / "run", schedule=100):
        for step, (inputs, targets) in enumerate(training.batches):
            with STAND_IN.heard_by(lambda kind, what, step=step: heard.append(f"{step}: {kind} {what}")):
                training.optimizer.zero_grad()
                training.loss_fn(training.model(inputs), targets).backward()
                training.optimizer.step()
    assert [line for line in heard if not line.startswith(("0:", "1:"))] == []  # 1: the far end of Alpha

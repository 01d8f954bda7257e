"""A training that is over is judged by what it came to: nothing of it is still to come."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import cockpit_core
from cockpit_core.events.data import load
from tests.core.diagnosis.test_diagnoses import STUCK, put
from tests.histories import find, replay_history


@pytest.mark.parametrize(("finished", "told"), [(True, "likely"), (False, "advice")])
def test_what_was_not_learned_by_the_end_is_an_alarm(finished: bool, told: str) -> None:
    """A hundred steps without progress may be a plateau, unless they are all there are."""
    assert replay_history(put(**STUCK), n=40, every=4, finished=finished).found["not_learning"].severity == told


def test_a_healthy_run_ends_without_a_word() -> None:
    assert find(finished=True) == {}


def train(logdir: Path, steps: int, status: str = "finished") -> cockpit_core.Run:
    torch.manual_seed(0)
    model, loss_fn = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run = cockpit_core.track(model, loss_fn, optimizer, logdir, config=("Loss",), schedule=20, on_error="raise")
    for _ in range(steps):
        optimizer.zero_grad()
        loss_fn(model(torch.randn(16, 6)), torch.randint(0, 4, (16,))).backward()
        optimizer.step()
    run.close(status)
    return run


def test_the_last_record_has_the_losses_behind_the_last_tracked_step(tmp_path: Path) -> None:
    run = train(tmp_path / "a", 135)
    data = load(tmp_path / "a")
    steps, counts = (values.tolist() for values in data.scalars("signal/recent_count"))
    assert (steps[-1], counts[-1]) == (134, 14)  # tracked: 120; behind it 14 more
    assert data.scalars("signal/finished")[0].tolist() == [134]
    assert run.findings == cockpit_core.diagnose(tmp_path / "a")


@pytest.mark.parametrize(("steps", "status"), [(135, "stopped"), (123, "finished")])
def test_a_run_that_was_broken_off_or_ends_at_a_record_adds_nothing(tmp_path: Path, steps: int, status: str) -> None:
    train(tmp_path / "a", steps, status)
    data = load(tmp_path / "a")
    assert data.scalars("signal/recent_count")[0].tolist()[-1] == 120
    assert ("signal/finished" in data.table.columns) == (status == "finished")


def test_a_run_that_goes_on_is_not_over(tmp_path: Path) -> None:
    """The end of the first part does not count once there is a second one."""
    train(tmp_path / "a", 60)
    model, loss_fn = nn.Linear(6, 4), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    options = {"config": ("Loss",), "schedule": 5, "on_error": "raise"}
    run = cockpit_core.track(model, loss_fn, optimizer, tmp_path / "a", resume=True, step=60, **options)
    assert not run._tracker.log.live.judge.history.finished
    loss_fn(model(torch.randn(16, 6)), torch.randint(0, 4, (16,))).backward()
    optimizer.step()
    run.close()
    assert run.findings == cockpit_core.diagnose(tmp_path / "a")

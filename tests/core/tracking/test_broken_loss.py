"""A loss that breaks is one event: two records off the schedule, one notice, and then as before."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest

import cockpit_core
from cockpit_core.tracking.spikes import CALM, Spikes
from tests.training import by_step, start


def train_until_lost(tmp_path: Path, value: float, config: object = "economy") -> cockpit_core.RunData:
    training = start("mlp")
    batches = list(training.batches(60))
    for inputs, _ in batches[23:]:
        inputs[0] = value
    with training.track(tmp_path / "run", schedule=10, config=config) as run:
        training.run(batches)
    return run.data


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_lost_training_goes_back_to_its_schedule(value: float, tmp_path: Path) -> None:
    data = train_until_lost(tmp_path, value)
    assert list(by_step(data, "Loss")) == [0, 10, 20, 23, 24, 30, 40, 50]
    assert [notice.step for notice in data.notices if notice.kind == "trigger"] == [23]


@pytest.mark.parametrize("config", ["economy", "full", ["GradNorm", "GradHist1d"]])
def test_lost_training_is_one_notice(config: object, tmp_path: Path) -> None:
    data = train_until_lost(tmp_path, math.nan, config)
    (notice,) = [notice for notice in data.notices if notice.kind == "not_finite"]
    assert notice.step == 23
    assert notice.message.startswith("GradNorm is nan" if isinstance(config, list) else "Loss is nan, and so are ")


def test_loss_that_breaks_again_is_said_again(tmp_path: Path) -> None:
    training = start("mlp")
    sound = copy.deepcopy(training.model.state_dict())
    (inputs, targets), *_ = training.batches(1)
    with training.track(tmp_path / "run", config=["Loss", "GradNorm"]) as run:
        for step in range(40):
            training.run([(inputs * math.nan if step in (5, 30) else inputs, targets)])
            training.model.load_state_dict(sound)
    losses = by_step(run.data, "Loss")
    assert [step for step, loss in losses.items() if math.isnan(loss)] == [5, 30]
    assert [notice.step for notice in run.data.notices if notice.kind == "not_finite"] == [5, 30]


def count(losses: list[float]) -> list[int]:
    spikes = Spikes()
    return [step for step, loss in enumerate(losses) if spikes.sees(loss) is not None]


def test_events_of_a_loss() -> None:
    calm = [1.0 + 0.01 * (k % 3) for k in range(40)]
    assert count([*calm, *[math.nan] * 50]) == [40]
    assert count([*calm, *[math.nan, 1.0] * 50]) == [40], "it flickers"
    assert count([*calm, math.inf, *calm, math.nan]) == [40, 81], "well again in between"
    assert count([*calm, 100.0, 100.0, 100.0, *calm]) == [40], "an excursion"
    assert count([*calm, 100.0, 100.0, math.nan, math.nan]) == [40, 42], "first high, then lost"
    assert count([*calm, *[100.0] * 300]) == [40], "a new level"
    assert count([*calm, 100.0, *calm[:CALM], 100.0]) == [40, 41 + CALM]
    assert count([*calm, 100.0, *calm[: CALM - 1], 100.0]) == [40]

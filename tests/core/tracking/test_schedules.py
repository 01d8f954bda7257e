"""When to measure: schedules, and steps that are tracked because something broke."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import cockpit_core
from tests import slow_truth
from tests.training import (
    ECONOMY,
    QUANTITIES,
    assert_alphas_close,
    assert_close,
    by_step,
    quantities,
    start,
    truth_of,
)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (3, [0, 3, 6, 9]),
        (cockpit_core.schedules.linear(4, offset=1), [1, 5, 9]),
        (cockpit_core.schedules.logarithmic(0, 1, steps=5), [0, 1, 3, 5, 10]),
        (cockpit_core.schedules.logarithmic(0, 1, steps=5, init=False), [1, 3, 5, 10]),
        (lambda step: step in (2, 3), [2, 3]),
    ],
)
def test_schedule_decides_which_steps_are_tracked(schedule, expected: list[int], tmp_path: Path) -> None:
    training = start("mlp")
    with training.track(tmp_path / "run", config="economy", schedule=schedule) as run:
        training.run(training.batches(12))
    truth = truth_of(start("mlp"), training.batches(12))
    for name in ECONOMY:
        chosen = {step: truth.scalars[name][step] for step in expected}
        measured = {step: value for step, value in by_step(run.data, name).items() if step in expected}
        assert_close(measured, chosen, name)
    assert list(by_step(run.data, "NormTest")) == expected
    assert_alphas_close(run.data, {step: truth.alphas[step] for step in expected if step < 11})


def test_quantity_may_have_a_schedule_of_its_own(tmp_path: Path) -> None:
    training = start("mlp")
    config = [
        cockpit_core.quantities.NormTest(schedule=2),
        cockpit_core.quantities.HessTrace(schedule=3),
        *quantities("Loss"),
    ]
    with training.track(tmp_path / "run", config=config) as run:
        training.run(training.batches(7))
    assert list(by_step(run.data, "NormTest")) == [0, 2, 4, 6]
    assert list(by_step(run.data, "HessTrace")) == [0, 3, 6]
    assert list(by_step(run.data, "Loss")) == list(range(7))


def test_trigger_tracks_the_next_step_in_full(tmp_path: Path) -> None:
    training = start("mlp")
    with training.track(tmp_path / "run", config=quantities(*QUANTITIES), schedule=100) as run:
        for step, batch in enumerate(training.batches(6)):
            if step == 3:
                run.trigger()
            training.run([batch])
    truth = truth_of(start("mlp"), training.batches(6), slow_truth.hessian)
    for name in ("NormTest", "TICDiag", "HessMaxEV", "CABS"):
        assert_close(by_step(run.data, name), {step: truth.scalars[name][step] for step in (0, 3)}, name)
    assert_alphas_close(run.data, {step: truth.alphas[step] for step in (0, 3)})
    assert run.data.histogram("GradHist2d", 3).step == 3
    assert set(run.data.rows.step[run.data.rows.triggered > 0].tolist()) <= {3, 4}
    assert 3 in run.data.rows.step[run.data.rows.triggered > 0]


@pytest.mark.parametrize("factor", [1000.0, math.nan])
def test_loss_that_spikes_is_tracked_by_itself(factor: float, tmp_path: Path) -> None:
    training = start("mlp")
    batches = list(training.batches(30))
    batches[22][0].mul_(factor)
    training.optimizer.param_groups[0]["lr"] = 1e-9  # the spike passes and leaves nothing behind
    with training.track(tmp_path / "run", config="economy", schedule=1000) as run:
        losses = training.run(batches)
    assert by_step(run.data, "Loss")[22] == pytest.approx(losses[22].item(), nan_ok=True)
    assert {22, 23} & by_step(run.data, "NormTest").keys()
    assert max(by_step(run.data, "NormTest").keys() - {0, 22, 23}, default=0) == 0 or math.isnan(factor)
    assert any(notice.kind == "trigger" for notice in run.data.notices)


def test_calm_training_triggers_nothing(tmp_path: Path) -> None:
    training = start("mlp")
    with training.track(tmp_path / "run", config="economy", schedule=1000) as run:
        training.run(training.batches(30))
    assert set(by_step(run.data, "NormTest")) == {0}

"""Loops as people write them: accumulation, clipping, functional losses; when to measure, and what else to log."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import cockpit_core
from tests import slow_truth
from tests.training import (
    ECONOMY,
    QUANTITIES,
    Training,
    assert_alphas_close,
    assert_close,
    assert_true,
    by_step,
    quantities,
    start,
    truth_of,
)

# ---- several backward passes, one step -----------------------------------------------------------------------------


def accumulate(training: Training, sizes: list[int], steps: int, share: Callable[[int], float]) -> list:
    """Each batch in pieces of the given sizes; ``share(size)`` is what the user multiplies a piece's loss with."""
    moments = []
    for inputs, targets in training.batches(steps):
        moments.append(slow_truth.freeze(training.model, training.loss_fn, inputs, targets, [0.1]))
        training.optimizer.zero_grad()
        for x, y in zip(inputs.split(sizes), targets.split(sizes), strict=True):
            (training.loss_fn(training.model(x), y) * share(len(x))).backward()
        training.optimizer.step()
        moments[-1].after.update({n: p.detach().clone() for n, p in training.model.named_parameters()})
    return moments


@pytest.mark.parametrize("sizes", [[3, 3], [4, 2], [2, 1, 3]])
def test_micro_batches_of_one_step_are_one_batch(sizes: list[int], tmp_path: Path) -> None:
    training = start("cnn", "adam")
    names = (*ECONOMY, "MeanGSNR", "EarlyStopping", "CABS", "HessTrace", "TICDiag", "TICTrace")
    with training.track(tmp_path / "run", config=quantities(*names, "Alpha", "GradHist1d")) as run:
        moments = accumulate(training, sizes, 3, lambda size: size / 6)
    truth = slow_truth.truth_of_moments(moments)
    truth.scalars["CABS"] = {t: v * 0.01 / 0.1 for t, v in truth.scalars["CABS"].items()}
    assert_true(run.data, truth, names)
    expected, _ = slow_truth.histogram_1d(slow_truth.matrix(truth.G[1], truth.names, 6))
    assert run.data.histogram("GradHist1d", 1).counts.sum() == expected.sum()
    assert abs(run.data.histogram("GradHist1d", 1).counts.astype(int) - expected).sum() <= 4


def test_largest_eigenvalue_of_micro_batches_is_that_of_the_whole_or_has_none(tmp_path: Path) -> None:
    training = start("mlp")
    with training.track(tmp_path / "run", config=quantities("HessMaxEV")) as run:
        moments = accumulate(training, [4, 3], 2, lambda size: size / 7)
    measured, truth = by_step(run.data, "HessMaxEV"), slow_truth.truth_of_moments(moments).scalars["HessMaxEV"]
    assert measured in ({}, pytest.approx(truth, rel=1e-3))
    if not measured:
        assert "HessMaxEV" in str(run.data.missing)


def test_losses_that_are_added_up_are_one_sum(tmp_path: Path) -> None:
    """Without dividing by the number of pieces, the user differentiates the sum of their means."""
    training = start("mlp")
    losses, norms = [], []
    with training.track(tmp_path / "run", config="economy") as run:
        for inputs, targets in training.batches(2):
            training.optimizer.zero_grad()
            pieces = [
                training.loss_fn(training.model(x), y)
                for x, y in ((inputs[:4], targets[:4]), (inputs[4:], targets[4:]))
            ]
            for loss in pieces:
                loss.backward()
            losses.append(sum(loss.item() for loss in pieces))
            norms.append(float(torch.cat([p.grad.flatten() for p in training.model.parameters()]).norm()))
            training.optimizer.step()
    assert by_step(run.data, "Loss") == pytest.approx(dict(enumerate(losses)))
    assert by_step(run.data, "GradNorm") == pytest.approx(dict(enumerate(norms)))


def test_loss_that_is_scaled_is_the_scaled_loss(tmp_path: Path) -> None:
    training = start("mlp")
    with training.track(tmp_path / "run", config="economy") as run:
        for inputs, targets in training.batches(1):
            loss = 0.25 * training.loss_fn(training.model(inputs), targets)
            loss.backward()
            norm = float(torch.cat([p.grad.flatten() for p in training.model.parameters()]).norm())
            training.optimizer.step()
    assert by_step(run.data, "GradNorm")[0] == pytest.approx(norm)
    assert by_step(run.data, "Loss")[0] == pytest.approx(loss.item())


def test_batch_that_the_user_threw_away_is_not_part_of_the_next_step(tmp_path: Path) -> None:
    """Skipping a bad batch between backward and step is common; zero_grad then forgets its gradient, and so must we."""
    training = start("mlp")
    with training.track(tmp_path / "run", config="economy") as run:
        for inputs, targets in training.batches(3):
            training.optimizer.zero_grad()
            training.loss_fn(training.model(inputs * 9), targets).backward()
            training.optimizer.zero_grad()
            training.loss_fn(training.model(inputs), targets).backward()
            training.optimizer.step()
    assert_true(run.data, truth_of(start("mlp"), training.batches(3)))


# ---- between backward and step -------------------------------------------------------------------------------------


def test_clipping_shows_both_norms_and_the_step_that_was_taken(tmp_path: Path) -> None:
    training = start("mlp")
    norms = []
    with training.track(tmp_path / "run", config="economy") as run:
        for inputs, targets in training.batches(3):
            training.optimizer.zero_grad()
            training.loss_fn(training.model(inputs), targets).backward()
            norms.append(float(torch.nn.utils.clip_grad_norm_(training.model.parameters(), 0.01)))
            training.optimizer.step()
    assert list(by_step(run.data, "GradNorm").values()) == pytest.approx(norms)
    assert list(by_step(run.data, "GradNormClipped").values()) == pytest.approx([0.01] * 3, rel=1e-3)
    assert list(by_step(run.data, "UpdateSize").values()) == pytest.approx([0.001] * 3, rel=1e-3)


def test_learning_rate_scheduler_is_followed(tmp_path: Path) -> None:
    training = start("groups")
    scheduler = torch.optim.lr_scheduler.StepLR(training.optimizer, 2, gamma=0.5)
    with training.track(tmp_path / "run", config="economy") as run:
        for batch in training.batches(5):
            training.run([batch])
            scheduler.step()
    assert list(by_step(run.data, "LearningRate").values()) == pytest.approx([0.1, 0.1, 0.05, 0.05, 0.025])
    assert list(by_step(run.data, "LearningRate/1").values()) == pytest.approx([0.02, 0.02, 0.01, 0.01, 0.005])


# ---- a loss that is no module --------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss_fn", [None, F.cross_entropy])
@pytest.mark.parametrize("with_individual", [True, False])
def test_functional_loss_is_served_by_backward(loss_fn, with_individual: bool, tmp_path: Path) -> None:
    training = start("residual_tanh", "adam")
    options = {"logdir": tmp_path / "run", "config": "full", "on_error": "raise"}
    with cockpit_core.track(training.model, loss_fn, training.optimizer, **options) as run:
        for inputs, targets in training.batches(3):
            training.optimizer.zero_grad()
            losses = F.cross_entropy(training.model(inputs), targets, reduction="none")
            run.backward(losses.mean(), individual_losses=losses if with_individual else None)
            training.optimizer.step()
    truth = truth_of(start("residual_tanh", "adam"), training.batches(3), slow_truth.hessian)
    for name in (*ECONOMY, "HessTrace", "HessMaxEV", "TICDiag"):
        assert_close(by_step(run.data, name), truth.scalars[name], name)
    if with_individual:
        assert_alphas_close(run.data, truth.alphas)
    else:
        assert by_step(run.data, "Alpha") == {}


def test_backward_of_the_run_leaves_the_same_gradients(tmp_path: Path) -> None:
    training, plain = start("cnn"), start("cnn")
    inputs, targets = next(iter(training.batches(1)))
    F.cross_entropy(plain.model(inputs), targets).backward()
    with cockpit_core.track(training.model, None, training.optimizer, tmp_path / "run", config="full") as run:
        run.backward(F.cross_entropy(training.model(inputs), targets))
    for p, q in zip(training.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad)


# ---- when to measure -----------------------------------------------------------------------------------------------


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


# ---- what else is on record ----------------------------------------------------------------------------------------


def test_logged_values_are_found_by_name(tmp_path: Path) -> None:
    training = start("mlp")
    with training.track(tmp_path / "run", config="economy") as run:
        for step, batch in enumerate(training.batches(3)):
            training.run([batch])
            run.log(valid_accuracy=0.5 + step / 10, epoch=step / 3)
    steps, values = run.data.scalars("valid_accuracy")
    assert values.tolist() == pytest.approx([0.5, 0.6, 0.7])
    assert len(steps) == 3


@pytest.mark.parametrize("value", [torch.tensor(0.25), 1, math.nan])
def test_anything_that_is_a_number_can_be_logged(value: float | Tensor, tmp_path: Path) -> None:
    with start("mlp").track(tmp_path / "run", config="economy") as run:
        run.log(score=value)
    assert run.data.scalars("score")[1].tolist() == pytest.approx([float(value)], nan_ok=True)


def test_epochs_come_from_the_number_of_steps_in_one(tmp_path: Path) -> None:
    training = start("mlp")
    with training.track(tmp_path / "run", config="economy", steps_per_epoch=4) as run:
        training.run(training.batches(5))
    epochs = dict(zip(run.data.rows.step.tolist(), run.data.rows.epoch.tolist(), strict=True))
    assert [epochs[step] for step in range(5)] == pytest.approx([0, 0.25, 0.5, 0.75, 1.0])


def test_epochs_come_from_the_log(tmp_path: Path) -> None:
    training = start("mlp")
    with training.track(tmp_path / "run", config="economy") as run:
        for epoch in range(2):
            run.log(epoch=epoch)
            training.run(training.batches(2))
    steps = run.data.rows.kind == run.data.rows.kind[-2]
    assert np.isfinite(run.data.rows.epoch[steps]).any()
    assert run.data.rows.epoch[steps].max() >= 1


def test_five_largest_samples_are_named(tmp_path: Path) -> None:
    training = start("mlp")
    with training.track(tmp_path / "run", config="economy") as run:
        training.run(training.batches(3))
    truth = truth_of(start("mlp"), training.batches(3))
    measured = {entry.step: list(entry.item) for entry in run.data.table.top_samples}
    for step in range(3):
        norms = np.linalg.norm(slow_truth.matrix(truth.G[step], truth.names, 7), axis=1)
        assert measured[step] == np.argsort(-norms)[:5].tolist()


def test_costs_are_on_record(tmp_path: Path) -> None:
    training = start("mlp")
    with training.track(tmp_path / "run", config="full") as run:
        training.run(training.batches(3))
    whole = by_step(run.data, "cost/step")
    assert list(whole) == [0, 1, 2]
    assert 0 < by_step(run.data, "cost/HessMaxEV")[2] < whole[2]


def test_layers_are_chosen_by_pattern(tmp_path: Path) -> None:
    training = start("residual_tanh")
    with training.track(tmp_path / "run", config="economy", layers=["2.*.weight", "3.bias"]) as run:
        training.run(training.batches(2))
    truth = truth_of(start("residual_tanh"), training.batches(2))
    chosen = {"2.inner.weight", "2.outer.weight", "3.bias"}
    for layer in chosen:
        assert_close(by_step(run.data, "NormTest", layer), truth.layers["NormTest"][layer], "NormTest")
    methods = {layer.name: layer.method for layer in run.data.header.layers}
    assert {name for name, method in methods.items() if method == "not selected"} == set(truth.names) - chosen


def test_pattern_that_matches_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="encoder"):
        start("mlp").track(tmp_path / "run", layers=["encoder.*"])

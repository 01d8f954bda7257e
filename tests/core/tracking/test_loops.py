"""Loops as people write them: gradient accumulation, clipping, learning-rate schedulers, functional losses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import cockpit_core
from tests import slow_truth
from tests.core.engine.test_broadcast import PROBLEMS as BROADCAST
from tests.training import (
    ECONOMY,
    Training,
    assert_alphas_close,
    assert_close,
    assert_true,
    by_step,
    quantities,
    start,
    truth_of,
    with_config,
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


class SumOfMeans(nn.CrossEntropyLoss):
    """What the user differentiates who does not divide by the number of pieces."""

    def __init__(self, sizes: list[int]) -> None:
        super().__init__()
        self.shares = torch.cat([torch.full((size,), 1 / size, dtype=torch.float64) for size in sizes])

    def forward(self, prediction: Tensor, target: Tensor) -> Tensor:
        losses = F.cross_entropy(prediction, target, reduction="none")
        return len(losses) * self.shares * losses if self.reduction == "none" else (self.shares * losses).sum()


def test_losses_that_are_added_up_are_one_sum(tmp_path: Path) -> None:
    training = start("mlp")
    with training.track(tmp_path / "run", config="economy") as run:
        moments = accumulate(training, [4, 3], 3, lambda size: 1.0)
    moments = [dataclasses.replace(moment, loss_fn=SumOfMeans([4, 3])) for moment in moments]
    assert_true(run.data, slow_truth.truth_of_moments(moments, None))


def backward_of_the_sum(training: Training, pieces: list[tuple[Tensor, Tensor]]) -> None:
    sum(training.loss_fn(training.model(x), y) for x, y in pieces).backward()


def backward_of_the_sum_after_all_forward_passes(training: Training, pieces: list[tuple[Tensor, Tensor]]) -> None:
    predictions = [training.model(x) for x, _ in pieces]
    losses = [training.loss_fn(out, y) for out, (_, y) in zip(predictions, pieces, strict=True)]
    sum(reversed(losses)).backward()


def backward_passes_after_all_forward_passes(training: Training, pieces: list[tuple[Tensor, Tensor]]) -> None:
    for loss in [training.loss_fn(training.model(x), y) for x, y in pieces]:
        loss.backward()


WAYS = [backward_of_the_sum, backward_of_the_sum_after_all_forward_passes, backward_passes_after_all_forward_passes]


@pytest.mark.parametrize("backward", WAYS)
@pytest.mark.parametrize(("problem", "sizes"), [("mlp", [4, 3]), ("cnn", [1, 3, 2]), ("tied", [2, 5])])
def test_batches_of_different_sizes_in_one_step_are_one_batch(
    backward: Callable, problem: str, sizes: list[int], tmp_path: Path
) -> None:
    """Their losses are added up before or by the backward pass; each sample counts as its own loss weighs it."""
    training, moments = start(problem, "adam"), []
    names = (*ECONOMY, "MeanGSNR", "EarlyStopping", "HessTrace")
    with training.track(tmp_path / "run", config=quantities(*names, "Alpha", "GradHist1d", "HessMaxEV")) as run:
        for inputs, targets in training.batches(4):
            moments.append(slow_truth.freeze(training.model, SumOfMeans(sizes), inputs, targets, [0.01]))
            training.optimizer.zero_grad()
            backward(training, list(zip(inputs.split(sizes), targets.split(sizes), strict=True)))
            training.optimizer.step()
            moments[-1].after.update({n: p.detach().clone() for n, p in training.model.named_parameters()})
    truth = slow_truth.truth_of_moments(moments, slow_truth.hessian)
    assert run.data.header.covered == 1.0
    assert run.data.header.batch_size == sum(sizes)
    assert_true(run.data, truth, names)
    expected, _ = slow_truth.histogram_1d(slow_truth.matrix(truth.G[1], truth.names, sum(sizes)))
    assert run.data.histogram("GradHist1d", 1).counts.sum() == expected.sum()
    assert by_step(run.data, "HessMaxEV") == {}
    assert "HessMaxEV" in {missing.name for missing in run.data.missing}


@pytest.mark.parametrize("name", ["vit", "vit_repeat", "gpt_table", "gpt_embedded_positions"])
def test_parameters_without_samples_meet_batches_of_different_sizes(name: str, tmp_path: Path) -> None:
    model, loss_fn, batches = dataclasses.replace(BROADCAST[name], batch_size=5).make()
    inputs, targets = next(iter(batches(1)))
    optimizer, sizes = torch.optim.SGD(model.parameters(), lr=0.1), [2, 3]
    pieces = list(zip(inputs.split(sizes), targets.split(sizes), strict=True))
    per_sample = [loss_fn(model(x[n : n + 1]), y[n : n + 1]) / len(x) for x, y in pieces for n in range(len(x))]
    rows = [torch.autograd.grad(loss, list(model.parameters()), materialize_grads=True) for loss in per_sample]
    G = len(inputs) * torch.stack([slow_truth.flatten(row) for row in rows]).numpy()
    with cockpit_core.track(model, loss_fn, optimizer, tmp_path / "run", on_error="raise", config="economy") as run:
        sum(loss_fn(model(x), y) for x, y in pieces).backward()
        optimizer.step()
    assert run.data.header.covered == 1.0
    assert by_step(run.data, "NormTest")[0] == pytest.approx(slow_truth.norm_test(G), rel=1e-5)
    assert by_step(run.data, "GradNorm")[0] == pytest.approx(slow_truth.grad_norm(G), rel=1e-5)


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
    with cockpit_core.track(training.model, loss_fn, training.optimizer, **with_config(options)) as run:
        for inputs, targets in training.batches(3):
            training.optimizer.zero_grad()
            losses = F.cross_entropy(training.model(inputs), targets, reduction="none")
            run.backward(losses.mean(), individual_losses=losses if with_individual else None)
            training.optimizer.step()
    truth = truth_of(start("residual_tanh", "adam"), training.batches(3), slow_truth.hessian)
    for name in (*ECONOMY, "HessTrace", "HessMaxEV", "TICDiag"):
        assert_close(by_step(run.data, name), truth.scalars[name], name)
    assert_alphas_close(run.data, truth.alphas)


def test_backward_of_the_run_leaves_the_same_gradients(tmp_path: Path) -> None:
    training, plain = start("cnn"), start("cnn")
    inputs, targets = next(iter(training.batches(1)))
    F.cross_entropy(plain.model(inputs), targets).backward()
    with cockpit_core.track(training.model, None, training.optimizer, tmp_path / "run", config="full") as run:
        run.backward(F.cross_entropy(training.model(inputs), targets))
    for p, q in zip(training.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad)

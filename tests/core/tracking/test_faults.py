"""Bad input and faults of the training itself: what must be on record, and that training never notices."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import cockpit_core
from tests import slow_truth
from tests.training import (
    OPTIMIZERS,
    QUANTITIES,
    Training,
    assert_true,
    by_step,
    loop,
    quantities,
    start,
    truth_of,
    with_config,
)

CURVATURE = ("HessTrace", "HessMaxEV", "TICDiag", "TICTrace")
OF_SPREAD = ("NormTest", "InnerTest", "OrthoTest", "EarlyStopping")


# ---- parameters without gradient -----------------------------------------------------------------------------------


def test_frozen_parameter_is_left_out_and_named_in_the_header(tmp_path: Path) -> None:
    training = start("frozen")
    with training.track(tmp_path / "run", config="full") as run:
        training.run(training.batches(2))
    methods = {layer.name: layer.method for layer in run.data.header.layers}
    assert methods["0.weight"] == "no gradient"
    assert "no gradient" not in {method for name, method in methods.items() if name != "0.weight"}
    assert by_step(run.data, "GradNorm", "0.weight") == {}
    assert_true(run.data, truth_of(start("frozen"), training.batches(2)))


class WithUnused(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.unused = nn.Linear(2, 2).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)


def test_unused_parameter_is_left_out_and_named_in_the_header(tmp_path: Path) -> None:
    training = start()
    training.model = WithUnused(training.model)
    training.optimizer = OPTIMIZERS["momentum"](list(training.model.parameters()))
    twin = copy.deepcopy(training)
    twin.optimizer = OPTIMIZERS["momentum"](list(twin.model.parameters()))
    with training.track(tmp_path / "run", config="full") as run:
        training.run(training.batches(3))
    methods = {layer.name: layer.method for layer in run.data.header.layers}
    assert methods["unused.weight"] == methods["unused.bias"] == "no gradient"
    assert_true(run.data, truth_of(twin, training.batches(3)))


# ---- batches -------------------------------------------------------------------------------------------------------


def test_batch_of_one_has_no_value_where_the_spread_counts_and_the_rest_do(tmp_path: Path) -> None:
    training = start()
    batches = [(x[:1], y[:1]) for x, y in training.batches(3)]
    with training.track(tmp_path / "run", config=quantities(*QUANTITIES)) as run:
        training.run(batches)
    for name in OF_SPREAD:
        assert by_step(run.data, name) == {}
        assert by_step(run.data, name, "0.weight") == {}
    for name in (
        "Loss",
        "GradNorm",
        "Distance",
        "UpdateSize",
        "ParamNorm",
        "HessTrace",
        "HessMaxEV",
        "MeanGSNR",
        "CABS",
    ):
        assert list(by_step(run.data, name)) == [0, 1, 2]
    assert [fit.alpha for fit in run.data.alphas] in ([], [None, None])
    assert run.data.histogram("GradHist1d", 2).counts.sum() == 92


def test_reason_for_a_missing_value_is_on_record(tmp_path: Path) -> None:
    training = start()
    with training.track(tmp_path / "run", config=quantities("NormTest")) as run:
        training.run([(x[:1], y[:1]) for x, y in training.batches(1)])
    assert "NormTest" in str(run.data.missing)


def test_batch_size_that_changes_is_followed(tmp_path: Path) -> None:
    training = start("residual_tanh", "adam")
    batches = [(x[:size], y[:size]) for size, (x, y) in zip((7, 3, 5, 2), training.batches(4), strict=True)]
    names = ("Loss", "GradNorm", *OF_SPREAD, "MeanGSNR", "CABS", *CURVATURE)
    with training.track(tmp_path / "run", config=quantities("Alpha", *names)) as run:
        training.run(batches)
    assert_true(run.data, truth_of(start("residual_tanh", "adam"), batches, slow_truth.hessian), names)


def test_layer_that_is_dead_has_no_ratio_and_breaks_nothing(tmp_path: Path) -> None:
    """No ReLU fires: the first layer's gradients are exactly zero, and so is what its ratios divide by."""
    training = start("mlp")
    with torch.no_grad():
        training.model[0].bias.fill_(-1e3)
    with training.track(tmp_path / "run", config=quantities(*QUANTITIES)) as run:
        training.run(training.batches(3))
    assert by_step(run.data, "GradNorm", "0.weight") == {0: 0.0, 1: 0.0, 2: 0.0}
    assert all(not math.isfinite(value) for value in by_step(run.data, "NormTest", "0.weight").values())
    assert all(math.isfinite(value) for value in by_step(run.data, "NormTest", "2.bias").values())
    assert all(math.isfinite(value) for value in by_step(run.data, "NormTest").values())
    assert run.data.histogram("GradHist1d", 1, "0.weight").counts[50] == 7 * 48


def test_no_gradient_at_all_breaks_nothing(tmp_path: Path) -> None:
    model, loss_fn = nn.Linear(3, 2).double(), nn.HingeEmbeddingLoss(margin=0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.no_grad():
        model.bias.fill_(50.0)
    inputs, targets = torch.randn(4, 3, dtype=torch.float64), -torch.ones(4, 2, dtype=torch.float64)
    options = {"config": quantities(*QUANTITIES), "on_error": "raise"}
    with cockpit_core.track(model, loss_fn, optimizer, tmp_path / "run", **with_config(options)) as run:
        loop(model, loss_fn, optimizer, [(inputs, targets)] * 3)
    assert by_step(run.data, "GradNorm") == {0: 0.0, 1: 0.0, 2: 0.0}
    assert by_step(run.data, "HessTrace") == {0: 0.0, 1: 0.0, 2: 0.0}
    assert all(not math.isfinite(value) for value in by_step(run.data, "NormTest").values())
    assert by_step(run.data, "Alpha") == {0: -1.0, 1: -1.0}


# ---- not a number --------------------------------------------------------------------------------------------------


def test_not_a_number_is_recorded_as_such(tmp_path: Path) -> None:
    training = start("mlp")
    batches = list(training.batches(3))
    batches[1][0][2, :] = math.nan
    with training.track(tmp_path / "run", config=quantities(*QUANTITIES)) as run:
        training.run(batches)
    for name in ("Loss", "GradNorm"):
        values = by_step(run.data, name)
        assert math.isfinite(values[0])
        assert math.isnan(values[1])
        assert math.isnan(values[2])
    assert any(notice.kind == "not_finite" and notice.step == 1 for notice in run.data.notices)
    histogram = run.data.histogram("GradHist1d", 1)
    assert histogram.nan > 0
    assert histogram.counts.sum() + histogram.nan + histogram.pos_inf + histogram.neg_inf == 7 * 92


def test_infinite_gradients_are_counted_apart(tmp_path: Path) -> None:
    model, loss_fn = nn.Linear(4, 2).double(), nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    targets = torch.zeros(5, 2, dtype=torch.float64)
    targets[3, 0] = -math.inf  # d loss / d output = +inf for this one entry
    config = quantities("Loss", "GradNorm", "GradHist1d", "GradHist2d", "NormTest")
    with cockpit_core.track(model, loss_fn, optimizer, logdir=tmp_path / "run", config=config, on_error="raise") as run:
        loop(model, loss_fn, optimizer, [(inputs, targets)])
    assert by_step(run.data, "Loss") == {0: math.inf}
    assert not math.isfinite(by_step(run.data, "GradNorm")[0])
    positive = int((inputs[3] > 0).sum())
    for name in ("GradHist1d", "GradHist2d"):
        weight, bias = (run.data.histogram(name, 0, layer) for layer in ("weight", "bias"))
        assert (weight.pos_inf, weight.neg_inf, weight.nan) == (positive, 4 - positive, 0)
        assert weight.counts.sum() == 5 * 8 - 4
        assert (bias.pos_inf, bias.neg_inf, bias.counts.sum()) == (1, 0, 9)


@pytest.mark.parametrize("config", ["economy", "business", "full"])
def test_training_that_is_lost_is_tracked_without_exception(config: str, tmp_path: Path) -> None:
    training = start("regression")
    for group in training.optimizer.param_groups:
        group["lr"] = 1e80
    with training.track(tmp_path / "run", config=config) as run:
        training.run(training.batches(12))
    assert not math.isfinite(by_step(run.data, "Loss")[11])


# ---- loops that are not textbook -----------------------------------------------------------------------------------


def test_zero_grad_forgotten_still_measures_this_batch_alone(tmp_path: Path) -> None:
    training = start("mlp")
    clipped, moments = [], []
    with training.track(tmp_path / "run", config="economy") as run:
        for inputs, targets in training.batches(3):
            moments.append(slow_truth.freeze(training.model, training.loss_fn, inputs, targets, [0.1]))
            training.loss_fn(training.model(inputs), targets).backward()
            clipped.append(float(torch.cat([p.grad.flatten() for p in training.model.parameters()]).norm()))
            training.optimizer.step()
            moments[-1].after.update({n: p.detach().clone() for n, p in training.model.named_parameters()})
    assert_true(run.data, slow_truth.truth_of_moments(moments, None))
    assert list(by_step(run.data, "GradNormClipped").values()) == pytest.approx(clipped)


class WithSquares(nn.CrossEntropyLoss):
    """What the two losses of one forward pass below are together."""

    def forward(self, prediction: Tensor, target: Tensor) -> Tensor:
        squares = prediction.square().mean(1)
        losses = nn.functional.cross_entropy(prediction, target, reduction="none") + squares
        return losses if self.reduction == "none" else losses.mean()


@pytest.mark.parametrize("by_module", [True, False])
def test_two_losses_of_one_forward_pass_see_the_same_samples(by_module: bool, tmp_path: Path) -> None:
    """``retain_graph=True``: the second backward pass was taken for one more micro-batch, and each sample counted twice."""
    training, twin = start("mlp"), start("mlp")
    twin.loss_fn = WithSquares()
    truth = truth_of(twin, twin.batches(4))
    loss_fn = training.loss_fn
    training.loss_fn = loss_fn if by_module else None  # type: ignore[assignment]
    with training.track(tmp_path / "run", config="economy") as run:
        for inputs, targets in training.batches(4):
            training.optimizer.zero_grad()
            output = training.model(inputs)
            loss_fn(output, targets).backward(retain_graph=True)
            output.square().mean().backward()
            training.optimizer.step()
    assert_true(run.data, truth)


def test_one_loss_twice_on_one_graph(tmp_path: Path) -> None:
    training, twin = start("mlp"), start("mlp")
    truth = truth_of(twin, twin.batches(3))
    with training.track(tmp_path / "run", config="economy") as run:
        for inputs, targets in training.batches(3):
            training.optimizer.zero_grad()
            loss = training.loss_fn(training.model(inputs), targets)
            (0.25 * loss).backward(retain_graph=True)
            (0.75 * loss).backward()
            training.optimizer.step()
    assert_true(run.data, truth)


def test_model_that_is_cast_between_two_steps(tmp_path: Path) -> None:
    """The step that Alpha projects on has the precision of before."""
    training = start("mlp")
    batches = list(training.batches(4))
    with training.track(tmp_path / "run", config="economy") as run:
        training.run(batches[:2])
        training.model.float()
        training.run([(inputs.float(), targets) for inputs, targets in batches[2:]])
    assert [fit.step for fit in run.data.alphas] == [0, 1, 2]


@pytest.mark.parametrize("problem", ["dropout", "batchnorm"])
def test_model_in_eval_mode_is_measured_in_eval_mode(problem: str, tmp_path: Path) -> None:
    training, twin = start(problem), start(problem)
    training.model.eval()
    twin.model.eval()
    with training.track(tmp_path / "run", config="full") as run:
        training.run(training.batches(3))
    truth = truth_of(twin, training.batches(3), slow_truth.hessian)
    assert_true(run.data, truth, ("GradNorm", "NormTest", "InnerTest", "HessTrace", "HessMaxEV", "TICDiag"))
    assert not training.model.training


def validate_without_grad(training: Training, inputs: Tensor, targets: Tensor) -> None:
    with torch.no_grad():
        training.loss_fn(training.model(inputs), targets)


def validate_with_grad(training: Training, inputs: Tensor, targets: Tensor) -> None:
    training.loss_fn(training.model(inputs), targets)


def validate_in_eval_mode(training: Training, inputs: Tensor, targets: Tensor) -> None:
    training.model.eval()
    with torch.inference_mode():
        training.loss_fn(training.model(inputs), targets)
    training.model.train()


@pytest.mark.parametrize("validate", [validate_without_grad, validate_with_grad, validate_in_eval_mode])
def test_validation_passes_are_not_recorded(validate: Callable, tmp_path: Path) -> None:
    """Wherever they happen: before a step, between forward and backward of one, before optimizer.step, after it."""
    training = start("cnn", "momentum")
    other = next((x[:3] * 5, y[:3]) for x, y in training.batches(1))
    with training.track(tmp_path / "run", config="full") as run:
        for inputs, targets in training.batches(3):
            validate(training, *other)
            training.optimizer.zero_grad()
            loss = training.loss_fn(training.model(inputs), targets)
            loss.backward()
            validate(training, *other)
            training.optimizer.step()
            validate(training, *other)
    truth = truth_of(start("cnn", "momentum"), training.batches(3), slow_truth.hessian)
    assert_true(run.data, truth, ("Loss", "GradNorm", "NormTest", "UpdateSize", "HessTrace", "HessMaxEV"))


def test_validation_between_forward_and_backward_is_not_recorded(tmp_path: Path) -> None:
    training = start("mlp")
    other = next(iter(training.batches(1)))
    with training.track(tmp_path / "run", config="economy") as run:
        for inputs, targets in training.batches(3):
            training.optimizer.zero_grad()
            loss = training.loss_fn(training.model(inputs), targets)
            validate_without_grad(training, other[0] * 7, other[1])
            loss.backward()
            training.optimizer.step()
    assert_true(run.data, truth_of(start("mlp"), training.batches(3)))

"""Loops beyond the textbook: scalers, closures, several optimizers or losses, a loss that is not all of the samples."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cockpit_core
from tests import slow_truth
from tests.networks import NETWORKS
from tests.training import (
    ECONOMY,
    OPTIMIZERS,
    Training,
    assert_close,
    assert_true,
    by_step,
    loop,
    quantities,
    start,
    train_tracked,
    truth_of,
    with_config,
)


def gradient_norm(model: nn.Module) -> float:
    return float(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).norm())


def clear_by_optimizer_in_place(training: Training) -> None:
    training.optimizer.zero_grad(set_to_none=False)


def clear_by_model(training: Training) -> None:
    training.model.zero_grad()


def clear_by_hand(training: Training) -> None:
    for p in training.model.parameters():
        p.grad = None


@pytest.mark.parametrize("clear", [clear_by_optimizer_in_place, clear_by_model, clear_by_hand])
def test_gradients_may_be_cleared_in_any_way(clear: Callable, tmp_path: Path) -> None:
    training = start("cnn", "momentum")
    with training.track(tmp_path / "run", config="full") as run:
        for inputs, targets in training.batches(3):
            clear(training)
            training.loss_fn(training.model(inputs), targets).backward()
            training.optimizer.step()
    truth = truth_of(start("cnn", "momentum"), training.batches(3), slow_truth.hessian)
    assert_true(run.data, truth, (*ECONOMY, "HessTrace", "TICDiag"))


def test_gradients_may_be_cleared_after_the_step(tmp_path: Path) -> None:
    training = start("mlp", "adam")
    with training.track(tmp_path / "run", config="economy") as run:
        for inputs, targets in training.batches(3):
            training.loss_fn(training.model(inputs), targets).backward()
            training.optimizer.step()
            training.optimizer.zero_grad()
    assert_true(run.data, truth_of(start("mlp", "adam"), training.batches(3)))


def test_numbers_under_a_gradient_scaler_are_unscaled(tmp_path: Path) -> None:
    training = start("mlp")
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with training.track(tmp_path / "run", config="full") as run:
        for inputs, targets in training.batches(3):
            training.optimizer.zero_grad()
            scaler.scale(training.loss_fn(training.model(inputs), targets)).backward()
            scaler.step(training.optimizer)
            scaler.update()
    truth = truth_of(start("mlp"), training.batches(3), slow_truth.hessian)
    assert_true(run.data, truth, (*ECONOMY, "HessTrace", "TICDiag"))
    assert_close(by_step(run.data, "GradNormClipped"), truth.scalars["GradNorm"], "GradNorm")


def test_step_that_the_scaler_skips_is_no_step(tmp_path: Path) -> None:
    training = start("mlp")
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    batches = list(training.batches(3))
    batches[1][0][0, 0] = torch.inf
    with training.track(tmp_path / "run", config="economy") as run:
        for inputs, targets in batches:
            training.optimizer.zero_grad()
            scaler.scale(training.loss_fn(training.model(inputs), targets)).backward()
            scaler.step(training.optimizer)
            scaler.update()
    truth = truth_of(start("mlp"), [batches[0], batches[2]])
    assert_close(by_step(run.data, "NormTest"), truth.scalars["NormTest"], "NormTest")


@pytest.mark.parametrize("scale", [1.0, 1024.0])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_is_measured_as_it_was_computed(dtype: torch.dtype, scale: float, tmp_path: Path) -> None:
    """Within the rounding of the lower precision of what it is in the higher one, and unscaled."""
    training = start("mlp")
    training.model.float()
    training.optimizer = torch.optim.SGD(training.model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    norms = []
    with training.track(tmp_path / "run", config="economy") as run:
        for inputs, targets in training.batches(3):
            training.optimizer.zero_grad()
            with torch.autocast("cpu", dtype):
                loss = training.loss_fn(training.model(inputs.float()), targets)
            scaler.scale(loss).backward()
            norms.append(gradient_norm(training.model) / scale)
            scaler.step(training.optimizer)
            scaler.update()
    truth = truth_of(start("mlp"), training.batches(3))
    assert list(by_step(run.data, "GradNorm").values()) == pytest.approx(norms, rel=1e-2)
    assert run.data.header.covered == 1.0
    for name in ("Loss", "GradNorm", "NormTest", "InnerTest", "UpdateSize"):
        assert by_step(run.data, name) == pytest.approx(truth.scalars[name], rel=3e-2), name


def test_closure_of_the_optimizer_is_tracked_and_neutral(tmp_path: Path) -> None:
    results = []
    for tracked in (False, True):
        training = start("regression")
        training.optimizer = torch.optim.LBFGS(training.model.parameters(), lr=0.1, max_iter=3)
        run = training.track(tmp_path / "run", config="full") if tracked else None
        for inputs, targets in training.batches(3):

            def closure(inputs: Tensor = inputs, targets: Tensor = targets, training: Training = training) -> Tensor:
                training.optimizer.zero_grad()
                loss = training.loss_fn(training.model(inputs), targets)
                loss.backward()
                return loss

            training.optimizer.step(closure)
        results.append([p.detach().clone() for p in training.model.parameters()])
        if run:
            run.close()
            assert list(by_step(run.data, "Loss")) == [0, 1, 2]
            assert list(by_step(run.data, "UpdateSize")) == [0, 1, 2]
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_several_optimizers_on_one_model_make_one_step(tmp_path: Path) -> None:
    training, twin = start("mlp"), start("mlp")
    first, last = training.model[0].parameters(), training.model[2].parameters()
    optimizers = [torch.optim.SGD(first, lr=0.1), torch.optim.SGD(last, lr=0.1)]
    options = {"logdir": tmp_path / "run", "config": "economy", "on_error": "raise"}
    with cockpit_core.track(training.model, training.loss_fn, optimizers, **with_config(options)) as run:
        for inputs, targets in training.batches(3):
            training.model.zero_grad()
            training.loss_fn(training.model(inputs), targets).backward()
            for optimizer in optimizers:
                optimizer.step()
    truth = truth_of(twin, training.batches(3))
    assert_true(run.data, truth)


class TwoLosses(nn.CrossEntropyLoss):
    """Two losses of the same samples, as one."""

    def forward(self, prediction: Tensor, target: Tensor) -> Tensor:
        return super().forward(prediction, target) + 0.5 * super().forward(-prediction, target)


def test_two_losses_of_the_same_samples_are_their_sum(tmp_path: Path) -> None:
    training = start("mlp", "momentum")
    with training.track(tmp_path / "run", config="economy") as run:
        for inputs, targets in training.batches(3):
            training.optimizer.zero_grad()
            prediction = training.model(inputs)
            (training.loss_fn(prediction, targets) + 0.5 * training.loss_fn(-prediction, targets)).backward()
            training.optimizer.step()
    twin = start("mlp", "momentum")
    twin.loss_fn = TwoLosses()
    assert_true(run.data, truth_of(twin, twin.batches(3)))


def test_regulariser_that_may_be_data_is_noticed_and_never_guessed(tmp_path: Path) -> None:
    """As many rows as samples: contributions do not add up to p.grad, left out and named, with what is still known."""
    training = start("mlp")
    training.batches = with_batches_of(8, training)
    offset = torch.zeros(8, 6, dtype=torch.float64)

    def add_regulariser(prediction: Tensor, target: Tensor) -> Tensor:
        return loss_fn(prediction, target) + (training.model[0].weight - offset).square().sum()

    loss_fn = training.loss_fn
    with pytest.warns(UserWarning, match=r"0\.weight"), training.track(tmp_path / "run", config="economy") as run:
        loop(training.model, add_regulariser, training.optimizer, training.batches(2))
    methods = {layer.name: (layer.method, layer.reason) for layer in run.data.header.layers}
    assert methods["0.weight"][0] == "not covered"
    assert methods["0.weight"][1]
    assert methods["2.weight"][0] != "not covered"
    assert run.data.header.covered == pytest.approx(44 / 92)
    assert by_step(run.data, "NormTest", "0.weight") == {}


def with_batches_of(size: int, training: Training) -> Callable:
    def batches(steps: int):
        for inputs, targets in training_batches(steps):
            yield inputs.repeat(2, 1)[:size], targets.repeat(2)[:size]

    training_batches = training.batches
    return batches


class FunctionalUse(nn.Module):
    """A weight that is used where no module hook sees it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(nn.functional.linear(torch.tanh(self.inner(x)), self.inner.weight)))


def test_weight_used_behind_our_back_is_noticed(tmp_path: Path) -> None:
    """Every value that is given is right, and the header does not claim that the module's own rule was enough."""
    training = start("mlp")
    training.model = FunctionalUse().double()
    training.optimizer = torch.optim.SGD(training.model.parameters(), lr=0.1)
    twin = copy.deepcopy(training)
    twin.optimizer = torch.optim.SGD(twin.model.parameters(), lr=0.1)
    with training.track(tmp_path / "run") as run:
        training.run(training.batches(3))
    (info,) = [layer for layer in run.data.header.layers if layer.name == "inner.weight"]
    assert info.method in ("not covered", "fallback")
    assert info.reason
    truth = truth_of(twin, training.batches(3))
    for layer in truth.names:
        measured = by_step(run.data, "NormTest", layer)
        assert set(measured) == {0, 1, 2} or layer == "inner.weight"
        assert measured == pytest.approx({step: truth.layers["NormTest"][layer][step] for step in measured}, rel=1e-5)


def test_samples_may_be_counted_along_another_dimension(tmp_path: Path) -> None:
    """[time, batch, features] through the whole network: a sample is a column."""
    torch.manual_seed(2)
    model, loss_fn = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double(), nn.MSELoss()
    inputs, targets = torch.randn(5, 6, 3, dtype=torch.float64), torch.randn(5, 6, 2, dtype=torch.float64)
    rows = []
    for n in range(6):
        loss = loss_fn(model(inputs[:, n : n + 1]), targets[:, n : n + 1])
        rows.append(slow_truth.flatten(torch.autograd.grad(loss, list(model.parameters()))))
    G = torch.stack(rows).numpy()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"config": quantities("NormTest", "InnerTest", "GradNorm"), "on_error": "raise", "batch_dim": 1}
    with cockpit_core.track(model, loss_fn, optimizer, tmp_path / "run", **with_config(options)) as run:
        loss_fn(model(inputs), targets).backward()
        optimizer.step()
    assert by_step(run.data, "NormTest")[0] == pytest.approx(slow_truth.norm_test(G))
    assert by_step(run.data, "InnerTest")[0] == pytest.approx(slow_truth.inner_test(G))
    assert by_step(run.data, "GradNorm")[0] == pytest.approx(slow_truth.grad_norm(G))


def test_curvature_on_a_part_of_the_batch_is_marked(tmp_path: Path) -> None:
    training = start("mlp")
    with training.track(tmp_path / "run", config=quantities("HessTrace"), curvature_samples=3) as run:
        training.run(training.batches(2))
    (inputs, targets), _ = training.batches(2)
    part = slow_truth.freeze(start("mlp").model, training.loss_fn, inputs[:3], targets[:3])
    expected = np.trace(slow_truth.hessian(part, part.parameters()))
    assert by_step(run.data, "HessTrace")[0] == pytest.approx(expected)
    assert "3 of 7" in str(run.data.estimates["HessTrace"].methods)


def test_resumed_run_that_goes_back_to_a_checkpoint_replaces_what_came_after(tmp_path: Path) -> None:
    training = start("mlp")
    batches = list(training.batches(6))
    with training.track(tmp_path / "run", config="economy"):
        training.run(batches[:2])
        state = copy.deepcopy((training.model.state_dict(), training.optimizer.state_dict()))
        training.run([(x * 3, y) for x, y in batches[2:5]])
    training.model.load_state_dict(state[0])
    training.optimizer.load_state_dict(state[1])
    with training.track(tmp_path / "run", config="economy", resume=True, step=2) as run:
        training.run(batches[2:4])
    truth = truth_of(start("mlp"), batches[:4])
    for name in ("Loss", "GradNorm", "NormTest", "UpdateSize", "ParamNorm"):
        assert_close(by_step(run.data, name), truth.scalars[name], name)
    assert run.data.histogram_steps("GradHist1d") == [0, 1, 2, 3]


def test_gradient_that_the_user_only_looks_at_is_no_batch(tmp_path: Path) -> None:
    """``torch.autograd.grad`` fires the loss's hook like a backward pass, but nothing of it reaches the optimizer."""
    training, twin = start("mlp"), start("mlp")
    with training.track(tmp_path / "run", config="full", on_error="raise") as run:
        for inputs, targets in training.batches(3):
            training.optimizer.zero_grad()
            loss = training.loss_fn(training.model(inputs), targets)
            torch.autograd.grad(loss, list(training.model.parameters()), retain_graph=True)
            loss.backward()
            training.optimizer.step()
    with twin.track(tmp_path / "twin", config="full", on_error="raise") as plain:
        twin.run(list(twin.batches(3)))
    for name in ("Loss", "NormTest", "HessMaxEV", "HessTrace", "Alpha"):
        assert by_step(run.data, name) == pytest.approx(by_step(plain.data, name), rel=1e-4), name


def test_module_too_large_to_keep_is_projected_on_the_step_with_its_old_parameters(tmp_path: Path) -> None:
    """Formed after the step, from parameters that have moved, the slopes would be silently wrong."""
    problem = NETWORKS["prelu"]
    data = train_tracked(problem, "adam", 3, tmp_path / "run", config="economy", memory_budget=1)
    truth = slow_truth.truth_of_run(problem, OPTIMIZERS["adam"], 3, None)
    assert_true(data, truth, ECONOMY)

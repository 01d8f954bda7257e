"""What is shown equals the slow truth: every quantity, network-wide and layer-wise, on every problem and optimizer."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cockpit_core
from tests import slow_truth
from tests.problems import PROBLEMS, Problem
from tests.training import (
    OPTIMIZERS,
    assert_alphas_close,
    assert_close,
    by_step,
    loop,
    quantities,
    train_tracked,
    with_config,
)

STEPS = 4
SCALARS = (
    *("Loss", "ParamNorm", "GradNorm", "Distance", "UpdateSize", "NormTest", "InnerTest", "OrthoTest", "MeanGSNR"),
    *("EarlyStopping", "CABS", "HessTrace", "HessMaxEV", "TICDiag", "TICTrace"),
)
CURVATURE = ("HessTrace", "HessMaxEV", "TICDiag", "TICTrace")


@dataclass
class Case:
    problem: Problem
    data: cockpit_core.RunData
    truth: slow_truth.RunTruth


@pytest.fixture(scope="module", params=[f"{problem}-{optimizer}" for problem in PROBLEMS for optimizer in OPTIMIZERS])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    name, optimizer = request.param.split("-")
    logdir = tmp_path_factory.mktemp(request.param) / "run"
    data = train_tracked(PROBLEMS[name], optimizer, STEPS, logdir)
    truth = slow_truth.truth_of_run(PROBLEMS[name], OPTIMIZERS[optimizer], STEPS)
    return Case(PROBLEMS[name], data, truth)


@pytest.mark.parametrize("name", SCALARS)
def test_network_wide_value_is_the_truth(case: Case, name: str) -> None:
    assert_close(by_step(case.data, name), case.truth.scalars[name], name)


@pytest.mark.parametrize("name", slow_truth.LAYERWISE)
def test_layer_wise_value_is_the_truth(case: Case, name: str) -> None:
    for layer in case.truth.names:
        assert_close(by_step(case.data, name, layer), case.truth.layers[name][layer], name)


def test_whatever_else_claims_to_be_layer_wise_is_the_truth(case: Case) -> None:
    for info in case.data.header.quantities:
        if info.layerwise and info.name in case.truth.layers:
            for layer in case.truth.names:
                assert_close(by_step(case.data, info.name, layer), case.truth.layers[info.name][layer], info.name)


def test_alpha_is_the_truth_with_its_whole_fit(case: Case) -> None:
    assert_alphas_close(case.data, case.truth.alphas)
    assert by_step(case.data, "Alpha") == {fit.step: fit.alpha for fit in case.data.alphas}


def test_learning_rates_are_on_record(case: Case) -> None:
    groups = len(case.problem.groups(case.problem.make()[0]))
    measured = [by_step(case.data, f"LearningRate/{i}" if i else "LearningRate") for i in range(groups)]
    expected = case.truth.lrs
    assert measured == [dict(enumerate(group)) for group in zip(*expected, strict=True)]


def test_gradient_norm_at_the_step_is_that_of_the_batch_without_clipping(case: Case) -> None:
    assert_close(by_step(case.data, "GradNormClipped"), case.truth.scalars["GradNorm"], "GradNorm")


def test_largest_sample_is_the_truth(case: Case) -> None:
    assert_close(by_step(case.data, "TopSampleNorm"), case.truth.scalars["TopSampleNorm"], "TopSampleNorm")


def test_every_layer_is_measured_by_a_rule_of_its_own(case: Case) -> None:
    """A rule that fails is replaced by the slow general way, with the same numbers: only the header shows it."""
    measured = {layer.name: (layer.method, layer.reason) for layer in case.data.header.layers}
    assert {measured[name][0] for name in case.truth.names} <= {"rule", "contribution"}, measured


def test_time_runs_forward(case: Case) -> None:
    steps, seconds = case.data.scalars("Time")
    assert steps.tolist() == list(range(STEPS))
    assert seconds[0] >= 0
    assert (np.diff(seconds) > 0).all()


# ---- histograms ----------------------------------------------------------------------------------------------------


def safely_inside(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """True where no rounding can push a value over an edge; a zero that sits exactly on an edge is no rounding."""
    distance = np.abs(values[..., None] - edges[1:-1]).min(-1)
    return (distance > 1e-9) | ((values == 0) & (distance == 0))


def assert_counts_1d(histogram: cockpit_core.foundation.records.Histogram, G: np.ndarray) -> None:
    expected, edges = slow_truth.histogram_1d(G)
    np.testing.assert_allclose(histogram.edges, edges, atol=1e-12)
    assert histogram.counts.shape == expected.shape
    assert histogram.counts.sum() == G.size
    certain, _ = slow_truth.histogram_1d(G[safely_inside(G, edges)])
    assert (histogram.counts >= certain).all()
    assert certain.sum() > 0.9 * G.size
    assert (histogram.below, histogram.above) == ((G < -2).sum(), (G > 2).sum())
    assert (histogram.nan, histogram.pos_inf, histogram.neg_inf) == (0, 0, 0)


def assert_counts_2d(histogram: cockpit_core.foundation.records.Histogram, G: np.ndarray, theta: np.ndarray) -> None:
    expected, edges, parameter_edges = slow_truth.histogram_2d(G, theta)
    np.testing.assert_allclose(histogram.edges, edges, atol=1e-12)
    np.testing.assert_allclose(histogram.parameter_edges, parameter_edges, atol=1e-12)
    assert histogram.counts.shape == expected.shape
    assert histogram.counts.sum() == G.size
    theta = np.broadcast_to(theta, G.shape)
    sure = safely_inside(G, edges) & safely_inside(theta, parameter_edges)
    certain, _, _ = slow_truth.histogram_2d(G[sure], theta[sure])
    assert (histogram.counts >= certain).all()
    assert certain.sum() > 0.9 * G.size
    assert (histogram.below, histogram.above) == ((G < -1).sum(), (G > 1).sum())
    assert (histogram.parameter_below, histogram.parameter_above) == ((theta < -2).sum(), (theta > 2).sum())


@pytest.mark.parametrize("step", range(STEPS))
def test_gradient_histogram_counts_every_value(case: Case, step: int) -> None:
    G, B = case.truth.G[step], case.problem.batch_size
    assert_counts_1d(case.data.histogram("GradHist1d", step), slow_truth.matrix(G, case.truth.names, B))
    for layer in case.truth.names:
        assert_counts_1d(case.data.histogram("GradHist1d", step, layer), slow_truth.matrix(G, [layer], B))


@pytest.mark.parametrize("step", range(STEPS))
def test_two_dimensional_histogram_counts_every_pair(case: Case, step: int) -> None:
    B, names = case.problem.batch_size, case.truth.names
    for layer, chosen in [(None, names), *((name, [name]) for name in names)]:
        G = slow_truth.matrix(case.truth.G[step], chosen, B)
        theta = slow_truth.matrix(case.truth.theta[step], chosen, 1)[0]
        assert_counts_2d(case.data.histogram("GradHist2d", step, layer), G, theta)


# ---- other curvatures ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mlp", "cnn", "regression", "residual_tanh", "weighted", "called_twice", "batchnorm"])
def test_gauss_newton_curvature_is_the_truth(name: str, tmp_path: Path) -> None:
    config = quantities(*CURVATURE)
    data = train_tracked(PROBLEMS[name], "sgd", 2, tmp_path / "run", config=config, curvature="ggn")
    truth = slow_truth.truth_of_run(PROBLEMS[name], OPTIMIZERS["sgd"], 2, slow_truth.gauss_newton)
    for quantity in CURVATURE:
        assert_close(by_step(data, quantity), truth.scalars[quantity], quantity)
    for layer in truth.names:
        assert_close(by_step(data, "HessTrace", layer), truth.layers["HessTrace"][layer], "HessTrace")
    assert data.header.curvature == "ggn"


class Square(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x**2


def build_saddle() -> nn.Module:
    """Outputs ``(w x)^2`` far below their targets bend down; the third one, above its target, bends up a little."""
    return nn.Sequential(nn.Linear(4, 3, bias=False), Square())


def targets_far_above(generator: torch.Generator, size: int) -> Tensor:
    return torch.tensor([30.0, 25.0, -2.0], dtype=torch.float64).repeat(size, 1)


def test_largest_eigenvalue_is_not_the_one_of_largest_magnitude(tmp_path: Path) -> None:
    saddle = Problem("saddle", build_saddle, nn.MSELoss, (4,), targets_far_above)
    truth = slow_truth.truth_of_run(saddle, OPTIMIZERS["adam"], 3)
    for H in truth.curvature:
        eigenvalues = np.linalg.eigvalsh(H)
        assert eigenvalues[0] < -2 * eigenvalues[-1] < 0, "the problem does not show what it should"
    data = train_tracked(saddle, "adam", 3, tmp_path / "run", config=quantities("HessMaxEV"))
    assert_close(by_step(data, "HessMaxEV"), truth.scalars["HessMaxEV"], "HessMaxEV")


@pytest.fixture(scope="module")
def monte_carlo(tmp_path_factory: pytest.TempPathFactory) -> tuple[cockpit_core.RunData, slow_truth.RunTruth]:
    """The same batch at the same parameters, 150 times: what changes is the Monte-Carlo draw alone."""
    problem = PROBLEMS["residual_tanh"]
    model, loss_fn, batches = problem.make()
    inputs, targets = next(batches(1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    logdir = tmp_path_factory.mktemp("monte_carlo") / "run"
    options = {"config": quantities("HessTrace"), "curvature": "ggn_mc", "on_error": "raise"}
    with cockpit_core.track(model, loss_fn, optimizer, logdir=logdir, **with_config(options)):
        for _ in range(150):
            optimizer.zero_grad()
            loss_fn(model(inputs), targets).backward()
            optimizer.step()
    moment = slow_truth.freeze(model, loss_fn, inputs, targets, [0.0])
    moment.after.update(model.state_dict())
    return cockpit_core.load(logdir), slow_truth.truth_of_moments([moment], slow_truth.gauss_newton)


def test_monte_carlo_gauss_newton_averages_to_the_gauss_newton(monte_carlo) -> None:
    data, truth = monte_carlo
    for layer in (None, *truth.names):
        values = np.array(list(by_step(data, "HessTrace", layer).values()))
        expected = truth.scalars["HessTrace"][0] if layer is None else truth.layers["HessTrace"][layer][0]
        assert len(values) == 150
        assert values.std() > 0, "every draw gave the same: nothing is random here"
        assert abs(values.mean() - expected) < 4 * values.std(ddof=1) / np.sqrt(len(values))


def test_monte_carlo_draws_nothing_from_the_global_generator(tmp_path: Path) -> None:
    expected = torch.manual_seed(0).get_state()
    train_tracked(PROBLEMS["mlp"], "sgd", 3, tmp_path / "run", config="business", curvature="ggn_mc")
    assert torch.equal(torch.get_rng_state(), expected)


@pytest.mark.parametrize("name", ["mlp", "cnn", "residual_tanh", "batchnorm"])
def test_single_precision_is_as_exact_as_its_own_rounding(name: str, tmp_path: Path) -> None:
    """Started from the same rounded weights and data, compared with the truth in double precision."""
    model, loss_fn, batches = PROBLEMS[name].make(dtype=torch.float32)
    double = copy.deepcopy(model).double()
    optimizer = OPTIMIZERS["sgd"](PROBLEMS[name].groups(model))
    config = quantities("GradNorm", "NormTest", "InnerTest", "MeanGSNR", "HessTrace", "HessMaxEV", "TICTrace")
    with cockpit_core.track(model, loss_fn, optimizer, tmp_path / "run", config=config, on_error="raise") as run:
        loop(model, loss_fn, optimizer, batches(1))
    (inputs, targets), *_ = batches(1)
    moment = slow_truth.freeze(double, loss_fn, inputs.double(), targets, [0.1])
    moment.after.update({n: p.detach() for n, p in double.named_parameters()})
    truth = slow_truth.truth_of_moments([moment])
    for info in config:
        assert by_step(run.data, info.name)[0] == pytest.approx(truth.scalars[info.name][0], rel=1e-3)

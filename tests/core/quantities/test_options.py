"""Options of the quantities, and what a configuration stands for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import cockpit_core
from tests import slow_truth
from tests.training import by_step, start, truth_of

ECONOMY = {"Alpha", "Distance", "UpdateSize", "ParamNorm", "GradNorm", "NormTest", "InnerTest", "OrthoTest"}
ECONOMY |= {"GradHist1d", "Loss"}
BUSINESS = ECONOMY | {"TICDiag", "HessTrace"}
FULL = BUSINESS | {"HessMaxEV", "GradHist2d"}


def measure(config, problem: str = "cnn", steps: int = 2, folder: Path | None = None, **options):
    training = start(problem)
    with training.track(folder / "run", config=config, **options) as run:
        training.run(training.batches(steps))
    return run.data, truth_of(start(problem), training.batches(steps), slow_truth.hessian)


@pytest.mark.parametrize(("config", "names"), [("economy", ECONOMY), ("business", BUSINESS), ("full", FULL)])
def test_configuration_stands_for_its_quantities(config: str, names: set[str], tmp_path: Path) -> None:
    data, _ = measure(config, folder=tmp_path, steps=3)
    assert {info.name for info in data.header.quantities} == names
    assert data.header.config == config
    for name in names - {"GradHist1d", "GradHist2d"}:
        assert len(data.scalars(name)[0]) == (2 if name == "Alpha" else 3)


def test_bins_and_ranges_of_histograms_are_free(tmp_path: Path) -> None:
    q = cockpit_core.quantities
    config = [
        q.GradHist1d(bins=13, range=(-0.5, 0.25)),
        q.GradHist2d(bins=(7, 9), range=(-0.3, 0.3), parameter_range=(-0.1, 0.2)),
    ]
    data, truth = measure(config, folder=tmp_path)
    G = slow_truth.matrix(truth.G[1], truth.names, 6)
    theta = slow_truth.matrix(truth.theta[1], truth.names, 1)[0]
    expected, edges = slow_truth.histogram_1d(G, 13, (-0.5, 0.25))
    histogram = data.histogram("GradHist1d", 1)
    np.testing.assert_allclose(histogram.edges, edges, atol=1e-12)
    assert histogram.counts.tolist() == expected.tolist()
    assert (histogram.below, histogram.above) == ((G < -0.5).sum(), (G > 0.25).sum())
    expected, edges, parameter_edges = slow_truth.histogram_2d(G, theta, (7, 9), ((-0.3, 0.3), (-0.1, 0.2)))
    histogram = data.histogram("GradHist2d", 1)
    np.testing.assert_allclose(histogram.edges, edges, atol=1e-12)
    np.testing.assert_allclose(histogram.parameter_edges, parameter_edges, atol=1e-12)
    assert histogram.counts.tolist() == expected.tolist()


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_adaptive_range_follows_the_gradients(scale: float, tmp_path: Path) -> None:
    """After a few steps the range holds nearly everything, and is not so wide that all sits in a few bins."""
    training, twin = start("regression"), start("regression")
    batches = [(x, y * scale) for x, y in training.batches(30)]
    config = [cockpit_core.quantities.GradHist1d(range="adaptive")]
    for group in (*training.optimizer.param_groups, *twin.optimizer.param_groups):
        group["lr"] = 0.0
    with training.track(tmp_path / "run", config=config) as run:
        training.run(batches)
    truth = truth_of(twin, batches[-1:])
    G = slow_truth.matrix(truth.G[0], truth.names, 7)
    histogram = run.data.histogram("GradHist1d")
    assert histogram.step == 29
    assert histogram.counts.sum() == G.size
    assert histogram.below + histogram.above <= 0.1 * G.size
    assert histogram.edges[-1] - histogram.edges[0] < 20 * np.abs(G).max()
    expected, _ = np.histogram(np.clip(G, histogram.edges[0], histogram.edges[-1]), histogram.edges)
    assert np.abs(histogram.counts.astype(int) - expected).sum() <= 4


def test_epsilon_is_an_option(tmp_path: Path) -> None:
    q = cockpit_core.quantities
    config = [q.MeanGSNR(epsilon=0.5), q.EarlyStopping(epsilon=0.25), q.TICDiag(epsilon=2.0), q.TICTrace(epsilon=3.0)]
    data, truth = measure(config, folder=tmp_path)
    for step in range(2):
        G, H = slow_truth.matrix(truth.G[step], truth.names, 6), truth.curvature[step]
        assert by_step(data, "MeanGSNR")[step] == pytest.approx(slow_truth.mean_gsnr(G, 0.5))
        assert by_step(data, "EarlyStopping")[step] == pytest.approx(slow_truth.early_stopping(G, 0.25))
        assert by_step(data, "TICDiag")[step] == pytest.approx(slow_truth.tic_diag(G, np.diag(H), 2.0))
        assert by_step(data, "TICTrace")[step] == pytest.approx(slow_truth.tic_trace(G, np.diag(H), 3.0))


def test_curvature_may_differ_between_quantities(tmp_path: Path) -> None:
    q = cockpit_core.quantities
    data, truth = measure([q.HessTrace(curvature="ggn"), q.HessMaxEV()], "residual_tanh", folder=tmp_path)
    training = start("residual_tanh")
    ggn = truth_of(training, training.batches(2), slow_truth.gauss_newton)
    assert by_step(data, "HessTrace") == pytest.approx(ggn.scalars["HessTrace"], rel=1e-5)
    assert by_step(data, "HessMaxEV") == pytest.approx(truth.scalars["HessMaxEV"], rel=1e-3)


def test_parameters_come_back_as_they_were(tmp_path: Path) -> None:
    data, truth = measure([cockpit_core.quantities.Parameters()], folder=tmp_path, steps=3)
    for step in range(3):
        stored = data.parameters(step)
        assert list(stored) == truth.names
        for layer in truth.names:
            np.testing.assert_array_equal(stored[layer], truth.theta[step][layer])


def test_quantities_derived_for_plain_descent_say_so(tmp_path: Path) -> None:
    training = start("mlp", "adam")
    names = ("CABS", "EarlyStopping", "GradNorm")
    with training.track(tmp_path / "run", config=[getattr(cockpit_core.quantities, name)() for name in names]) as run:
        training.run(training.batches(1))
    marked = {info.name for info in run.data.header.quantities if info.defined_for_sgd}
    assert marked == {"CABS", "EarlyStopping"}
    assert list(by_step(run.data, "CABS")) == [0]


def test_header_says_what_was_tracked(tmp_path: Path) -> None:
    training = start("groups", "momentum")
    with training.track(tmp_path / "run", config="full", schedule=2, steps_per_epoch=4) as run:
        training.run(training.batches(3))
    header = run.data.header
    assert header.model == "Sequential"
    assert header.loss == "CrossEntropyLoss"
    assert [layer.name for layer in header.layers] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert [tuple(layer.shape) for layer in header.layers] == [(8, 6), (8,), (4, 8), (4,)]
    assert header.num_parameters == 92
    assert header.batch_size == 7
    assert header.covered == 1.0
    assert header.steps_per_epoch == 4
    (optimizer,) = header.optimizers
    assert optimizer.name == "SGD"
    assert [group["lr"] for group in optimizer.groups] == ["0.05", "0.02"]
    assert optimizer.groups[0]["momentum"] == "0.9"
    assert optimizer.group_layers == [["0.weight", "2.weight"], ["0.bias", "2.bias"]]
    assert {"torch", "python"} <= header.versions.keys()


def test_quantities_by_name(tmp_path: Path) -> None:
    training = start("mlp")
    with training.track(tmp_path / "run", config=["Loss", cockpit_core.quantities.GradNorm()]) as run:
        training.run(training.batches(1))
    assert {info.name for info in run.data.header.quantities} == {"Loss", "GradNorm"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"config": ["Loss", "GradNrm"]}, "no quantity 'GradNrm'; there are ActivationScale"),
        ({"config": 7}, "'full' or a list of quantities, got 7"),
        ({"schedule": 0}, "schedule is an interval of at least 1 step, got 0"),
    ],
)
def test_mistakes_are_answered_with_the_remedy(options: dict, words: str, tmp_path: Path) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        start("mlp").track(tmp_path / "run", **options)


def test_loss_and_optimizer_in_the_wrong_order(tmp_path: Path) -> None:
    training = start("mlp")
    with pytest.raises(TypeError, match=r"the order is track\(model, loss_fn, optimizer\)"):
        cockpit_core.track(training.model, training.optimizer, training.loss_fn, tmp_path / "run", config="economy")


def test_layers_that_learn_nothing_are_noticed(tmp_path: Path) -> None:
    training = start("mlp")
    with torch.no_grad():
        training.model[-1].weight.zero_()  # nothing comes back through it to the layers before
    with training.track(tmp_path / "run", config="economy") as run:
        training.run(training.batches(1))
    (notice,) = [notice for notice in run.data.notices if notice.kind == "zero_gradient"]
    assert "tensors have a gradient of exactly zero and learn nothing: 0.weight, 0.bias" in notice.message
    zero = sum(by_step(run.data, "GradNorm", layer)[0] == 0 for layer in run.data.layers)
    assert notice.message.startswith(f"{zero} of {len(run.data.layers)}")


def test_what_stays_the_case_is_said_ever_more_rarely(tmp_path: Path) -> None:
    training = start("mlp")
    config = [cockpit_core.quantities.GradHist1d(range=(-1e-9, 1e-9)), cockpit_core.quantities.Loss()]
    with training.track(tmp_path / "run", config=config) as run:
        training.run(training.batches(9))
    network = [n.step for n in run.data.notices if n.kind == "outside_range" and not n.layer]
    assert network == [0, 1, 3, 7]


def test_histograms_are_logarithmic_unless_bins_or_range_are_given(tmp_path: Path) -> None:
    q = cockpit_core.quantities
    assert (q.GradHist1d().scale, q.GradHist2d().scale) == ("log", "log")
    assert (q.GradHist1d(bins=50).scale, q.GradHist2d(parameter_range=(-1, 1)).scale) == ("linear", "linear")
    data, truth = measure([q.GradHist1d(), q.GradHist2d(per_octave=2)], folder=tmp_path)
    G = slow_truth.matrix(truth.G[1], truth.names, 6)
    theta = np.broadcast_to(slow_truth.matrix(truth.theta[1], truth.names, 1), G.shape)
    one, two = data.histogram("GradHist1d", 1), data.histogram("GradHist2d", 1)
    assert one.counts.sum() == two.counts.sum() == G.size
    expected = slow_truth.histogram_by_magnitude([G], [one.edges])
    assert np.abs(one.counts.astype(int) - expected).sum() <= 4  # sums in another order: what cancels is not quite zero
    expected = slow_truth.histogram_by_magnitude([G, theta], [two.edges, two.parameter_edges])
    assert np.abs(two.counts.astype(int) - expected).sum() <= 4
    for layer in data.layers:
        assert data.histogram("GradHist1d", 1, layer).edges.tolist() == one.edges.tolist()


@pytest.mark.parametrize(("options", "message"), [
    ({"scale": "log", "range": (-1, 1)}, "range cannot be set for logarithmic bins"),
    ({"scale": "log", "bins": 10}, "bins cannot be set"), ({"scale": "logarithmic"}, "'log' or 'linear'"),
    ({"scale": "linear", "per_octave": 3}, "scale='log'"), ({"per_octave": 99}, "from 1 to 8"),
])  # fmt: skip
def test_options_of_the_other_scale_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cockpit_core.quantities.GradHist1d(**options)


def test_run_has_the_names_that_a_user_needs_and_no_others() -> None:
    training = "log trigger backward batch stepping note_settings request_stop should_stop close"
    looking = "data findings cost_share subscribe report logdir step status"
    assert {name for name in dir(cockpit_core.Run) if name[0] != "_"} == {*training.split(), *looking.split()}

"""A user's own quantity: one class in the user's file; and the statistics it may ask for are the truth."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cockpit_core.quantities.base import Quantity, Statistics, Value
from tests import slow_truth
from tests.training import assert_close, by_step, quantities, start, truth_of


class LargestSample(Quantity):
    """Norm of the largest individual gradient, of the network and of each layer."""

    needs = ("norms",)
    layerwise = True
    description = "How large the largest individual gradient is"

    def measure(self, statistics: Statistics) -> Value:
        layers = {name: float(squared.max().sqrt()) for name, squared in statistics.norms.items()}
        return Value(float(sum(statistics.norms.values()).max().sqrt()), layers)


class Doubled(Quantity):
    """A plain float is enough."""

    def __init__(self, factor: float = 2.0, **options) -> None:
        super().__init__(**options)
        self.factor = factor

    def measure(self, statistics: Statistics) -> float:
        return self.factor * statistics.loss


class Spy(Quantity):
    """Keeps what it is given."""

    needs = ("losses", "gradients", "parameters", "start", "update", "norms", "dots", "squares")

    def __init__(self) -> None:
        super().__init__()
        self._seen: list[Statistics] = []

    def measure(self, statistics: Statistics) -> float:
        copies = {name: {k: v.clone() for k, v in getattr(statistics, name).items()} for name in self.needs[1:]}
        self._seen.append(Statistics(statistics.step, statistics.batch_size, statistics.loss, **copies))
        object.__setattr__(self._seen[-1], "losses", statistics.losses.clone())
        return 0.0


def test_own_quantity_is_recorded_network_wide_and_layer_wise(tmp_path: Path) -> None:
    training = start("cnn", "adam")
    with training.track(tmp_path / "run", config=[LargestSample(), *quantities("Loss")]) as run:
        training.run(training.batches(3))
    truth = truth_of(start("cnn", "adam"), training.batches(3))
    assert_close(by_step(run.data, "LargestSample"), truth.scalars["TopSampleNorm"], "LargestSample")
    for layer in truth.names:
        assert_close(by_step(run.data, "LargestSample", layer), truth.layers["TopSampleNorm"][layer], "LargestSample")
    (info,) = [info for info in run.data.header.quantities if info.name == "LargestSample"]
    assert info.layerwise
    assert info.description == LargestSample.description


def test_own_quantity_has_options_and_a_schedule(tmp_path: Path) -> None:
    training = start("mlp")
    with training.track(tmp_path / "run", config=[Doubled(factor=3.0, schedule=2)]) as run:
        losses = training.run(training.batches(4))
    expected = {step: 3 * losses[step].item() for step in (0, 2)}
    assert by_step(run.data, "Doubled") == pytest.approx(expected)
    (info,) = [info for info in run.data.header.quantities if info.name == "Doubled"]
    assert info.options["factor"] == "3.0"


@pytest.mark.parametrize("problem", ["cnn", "residual_relu", "batchnorm", "called_twice", "tied"])
def test_statistics_a_quantity_may_ask_for_are_the_truth(problem: str, tmp_path: Path) -> None:
    training, spy = start(problem, "momentum"), Spy()
    with training.track(tmp_path / "run", config=[spy]):
        training.run(training.batches(2))
    twin = start(problem, "momentum")
    moments = slow_truth.watch_loop(twin.model, twin.loss_fn, twin.optimizer, training.batches(2))
    truth = slow_truth.truth_of_moments(moments, None)
    assert [seen.step for seen in spy._seen] == [0, 1]
    for seen, moment, G, theta in zip(spy._seen, moments, truth.G, truth.theta, strict=True):
        losses = slow_truth.individual_losses(moment.loss_fn, moment.predict(moment.parameters()), moment.targets)
        np.testing.assert_allclose(seen.losses, losses.detach(), rtol=1e-9)
        for layer in truth.names:
            flat, g = G[layer].reshape(len(G[layer]), -1), G[layer].mean(0)
            np.testing.assert_allclose(seen.gradients[layer], g, rtol=1e-7, atol=1e-13)
            np.testing.assert_array_equal(seen.parameters[layer], theta[layer])
            np.testing.assert_array_equal(seen.start[layer], truth.theta[0][layer])
            np.testing.assert_allclose(
                seen.update[layer], moment.after[layer].numpy() - theta[layer], rtol=1e-9, atol=1e-13
            )
            np.testing.assert_allclose(seen.norms[layer], (flat**2).sum(1), rtol=1e-7, atol=1e-13)
            np.testing.assert_allclose(seen.dots[layer], flat @ g.ravel(), rtol=1e-7, atol=1e-13)
            np.testing.assert_allclose(seen.squares[layer], (G[layer] ** 2).sum(0), rtol=1e-7, atol=1e-13)


def test_two_of_the_same_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Doubled"):
        start("mlp").track(tmp_path / "run", config=[Doubled(), Doubled(3.0)])


def test_unknown_need_is_refused_by_name(tmp_path: Path) -> None:
    class Greedy(Quantity):
        needs = ("everything",)

    with pytest.raises(ValueError, match="everything"):
        start("mlp").track(tmp_path / "run", config=[Greedy()])

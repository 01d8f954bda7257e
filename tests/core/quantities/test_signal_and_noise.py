"""SignalShare and NoiseScale: the slow truth, known covariances, and what is said where there is no signal."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cockpit_core
from cockpit_core import quantities as q
from tests import slow_truth
from tests import slow_truth_instruments as instruments
from tests.networks import NETWORKS
from tests.problems import PROBLEMS
from tests.training import OPTIMIZERS, by_step, loop, train_tracked

STEPS = 4
EVERY = {**NETWORKS, **PROBLEMS}


class MeanOutput(nn.Module):
    """The individual gradients of a Linear without bias are its inputs: their distribution is known."""

    reduction = "mean"

    def forward(self, output: Tensor) -> Tensor:
        return output.mean() if self.reduction == "mean" else output


@pytest.mark.parametrize("name", ["mlp", "cnn", "encoder_layer", "lstm", "batchnorm"])
def test_both_are_the_truth_network_wide_and_layer_wise(name: str, tmp_path: Path) -> None:
    config = [q.SignalShare(), q.NoiseScale(window=3)]
    data = train_tracked(EVERY[name], "momentum", STEPS, tmp_path / "run", config=config)
    truth = slow_truth.truth_of_moments(slow_truth.watch_training(EVERY[name], OPTIMIZERS["momentum"], STEPS), None)
    for layer in (None, *truth.names):
        chosen = truth.names if layer is None else [layer]
        G = [slow_truth.matrix(own, chosen, EVERY[name].batch_size) for own in truth.G]
        shares = {t: instruments.signal_share(G[: t + 1]) for t in range(STEPS)}
        scales = {t: instruments.noise_scale(G[max(0, t - 2) : t + 1]) for t in range(STEPS)}
        scales = {t: scale for t, scale in scales.items() if scale is not None}
        assert by_step(data, "SignalShare", layer) == pytest.approx(shares, rel=1e-6, abs=1e-12)
        assert by_step(data, "NoiseScale", layer) == pytest.approx(scales, rel=1e-6)
    G = [slow_truth.matrix(own, truth.names, EVERY[name].batch_size) for own in truth.G]
    error = data.estimates["SignalShare"].errors[-1]
    squared = lambda g: float(g.mean(0) @ g.mean(0))  # noqa: E731
    assert error == pytest.approx(instruments.jackknife(G, instruments.signal, squared), rel=1e-6)


def measure_known(steps: int, seed: int, tmp_path: Path, **options) -> tuple[cockpit_core.RunData, float]:
    generator = torch.Generator().manual_seed(seed)
    mean, spread = torch.full((40,), 0.5), torch.linspace(0.2, 1.5, 40)
    model, loss_fn = nn.Linear(40, 1, bias=False), MeanOutput()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    config = [q.NoiseScale(**options)]
    with cockpit_core.track(model, loss_fn, optimizer, tmp_path / f"run{seed}", config=config, on_error="raise") as run:
        for _ in range(steps):
            optimizer.zero_grad()
            loss_fn(model(mean + spread * torch.randn(8, 40, generator=generator))).backward()
            optimizer.step()
    return run.data, float((spread**2).sum() / (mean**2).sum())


def test_known_covariance_is_found_within_5_percent_after_200_steps_of_8_samples(tmp_path: Path) -> None:
    data, truth = measure_known(200, 0, tmp_path)
    value, error = data.scalars("NoiseScale")[1][-1], data.estimates["NoiseScale"].errors[-1]
    assert value == pytest.approx(truth, rel=0.05)
    assert abs(value - truth) < 4 * error < truth


def test_it_is_the_estimator_of_two_batch_sizes_with_the_smallest_there_is(tmp_path: Path) -> None:
    """The source compares gradients of two batch sizes. Ours is that for batches of 1 and B, over all samples; with 4 and
    8 the same number comes out, with more noise."""
    data, truth = measure_known(200, 0, tmp_path)
    generator = torch.Generator().manual_seed(0)
    spread = torch.linspace(0.2, 1.5, 40)
    batches = [(0.5 + spread * torch.randn(8, 40, generator=generator)).double().numpy() for _ in range(200)]
    value, error = data.scalars("NoiseScale")[1][-1], data.estimates["NoiseScale"].errors[-1]
    assert value == pytest.approx(instruments.noise_scale_of_two_sizes(batches, 1), rel=1e-5)
    other = instruments.noise_scale_of_two_sizes(batches, 4)
    assert other == pytest.approx(value, abs=6 * error)
    assert other != pytest.approx(value, rel=1e-3)
    assert other == pytest.approx(truth, rel=0.2)


def test_known_covariance_is_within_four_errors_at_each_of_200_steps(tmp_path: Path) -> None:
    """A window of a quarter of them: not one average, but many."""
    data, truth = measure_known(200, 1, tmp_path, window=50)
    values, errors = data.scalars("NoiseScale")[1][50:], data.estimates["NoiseScale"].errors[50:]
    away = np.abs(values - truth) / errors
    assert away.max() < 4
    assert away.max() > 0.5, "the errors are far too large"


def test_no_signal_gives_no_value_and_a_bound(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, loss_fn = nn.Linear(30, 1, bias=False).double(), MeanOutput()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    noise = [torch.randn(8, 30, dtype=torch.float64) for _ in range(3)]
    noise = [x - x.mean(0) for x in noise]  # no signal at all
    config = [q.NoiseScale(), q.SignalShare()]
    with cockpit_core.track(model, loss_fn, optimizer, tmp_path / "run", config=config, on_error="raise") as run:
        for x in noise:
            optimizer.zero_grad()
            loss_fn(model(x)).backward()
            optimizer.step()
    reasons = [missing.reason for missing in run.data.missing if missing.name == "NoiseScale"]
    assert len(reasons) == 3
    assert "no signal" in reasons[0]


def test_batch_of_one_says_so(tmp_path: Path) -> None:
    model, loss_fn, batches = PROBLEMS["mlp"].make()
    optimizer = OPTIMIZERS["sgd"](list(model.parameters()))
    config = [q.NoiseScale(), q.SignalShare()]
    with cockpit_core.track(model, loss_fn, optimizer, tmp_path / "run", config=config, on_error="raise") as run:
        loop(model, loss_fn, optimizer, [(x[:1], y[:1]) for x, y in batches(2)])
    assert {m.name: m.reason for m in run.data.missing}.keys() == {"NoiseScale", "SignalShare"}
    assert all("one sample" in m.reason for m in run.data.missing)


@pytest.mark.parametrize("window", [0, -1, 2.5, True, "9"])
def test_window_is_checked(window) -> None:
    with pytest.raises(ValueError, match="window"):
        q.NoiseScale(window=window)

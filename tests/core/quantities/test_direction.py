"""UpdateCosine, UpdateRatio, LayerProgress, EpsilonShare, SpikeScore: what the optimizer did, against the slow truth."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import cockpit_core
from cockpit_core import quantities as q
from tests import slow_truth
from tests import slow_truth_instruments as instruments
from tests.networks import NETWORKS
from tests.problems import PROBLEMS
from tests.training import OPTIMIZERS, by_step, loop, start, train_tracked

STEPS = 4
EVERY = {**NETWORKS, **PROBLEMS}
CASES = [(p, o) for p in ("mlp", "cnn", "encoder_layer", "lstm") for o in ("momentum", "adam")]


class Seen:
    """theta_t, theta_{t+1} and g of each step as vectors, of the network or of one layer."""

    def __init__(self, problem: str, optimizer: str):
        moments = slow_truth.watch_training(EVERY[problem], OPTIMIZERS[optimizer], STEPS)
        self.truth = slow_truth.truth_of_moments(moments, None)
        self.after = [{n: p.numpy() for n, p in moment.after.items()} for moment in moments]

    def vectors(self, names: list[str]) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        def flat(tensors: dict[str, np.ndarray]) -> np.ndarray:
            return np.concatenate([tensors[name].ravel() for name in names])

        means = [{n: G[n].mean(0) for n in names} for G in self.truth.G]
        return [(flat(self.truth.theta[t]), flat(self.after[t]), flat(means[t])) for t in range(STEPS)]


@pytest.mark.parametrize(("problem", "optimizer"), CASES)
def test_direction_is_the_truth_network_wide_and_layer_wise(problem: str, optimizer: str, tmp_path: Path) -> None:
    config = [q.UpdateCosine(), q.UpdateRatio(), q.LayerProgress()]
    data = train_tracked(EVERY[problem], optimizer, STEPS, tmp_path / "run", config=config)
    seen = Seen(problem, optimizer)
    for layer in (None, *seen.truth.names):
        vectors = seen.vectors(seen.truth.names if layer is None else [layer])
        steps = [after - theta for theta, after, _ in vectors]
        norm = np.linalg.norm
        long = [t for t in range(STEPS) if norm(vectors[t][0]) > 0]  # some biases begin at zero
        expected: dict[str, dict[int, float]] = {
            "UpdateCosine": {t: instruments.cosine(steps[t], -vectors[t][2]) for t in range(STEPS)},
            "UpdateCosine/last": {t: instruments.cosine(steps[t], steps[t - 1]) for t in range(1, STEPS)},
            "UpdateRatio/angle": {t: instruments.angle(*vectors[t][:2]) for t in long},
            "LayerProgress": {t: float(-steps[t] @ vectors[t][2]) for t in range(STEPS)},
        }
        expected["UpdateRatio"] = {t: float(norm(steps[t]) / norm(vectors[t][0])) for t in long}
        for name, values in expected.items():
            found = dict(zip(*(column.tolist() for column in data.scalars(name, layer)), strict=True))
            assert found == pytest.approx(values, rel=1e-6, abs=1e-9), (name, layer)


def test_plain_sgd_goes_along_the_gradient(tmp_path: Path) -> None:
    data = train_tracked(PROBLEMS["cnn"], "sgd", 2, tmp_path / "run", config=[q.UpdateCosine()])
    assert by_step(data, "UpdateCosine") == pytest.approx({0: 1.0, 1: 1.0})


def test_last_update_is_the_one_right_before_or_none(tmp_path: Path) -> None:
    training = start("mlp", "adam")
    with training.track(tmp_path / "run", config=[q.UpdateCosine(schedule=lambda step: step in (0, 2, 3))]) as run:
        training.run(training.batches(5))
    assert run.data.scalars("UpdateCosine/last")[0].tolist() == [3]


@pytest.mark.parametrize("problem", ["mlp", "cnn", "encoder_layer", "lstm"])
def test_share_of_epsilon_is_the_truth(problem: str, tmp_path: Path) -> None:
    eps, rate = 1e-3, 0.01
    model, loss_fn, batches = EVERY[problem].make()
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, eps=eps)
    with cockpit_core.track(
        model, loss_fn, optimizer, tmp_path / "run", config=[q.EpsilonShare()], on_error="raise"
    ) as run:
        loop(model, loss_fn, optimizer, batches(STEPS))
    twin, loss_fn, batches = EVERY[problem].make()
    moments = slow_truth.watch_loop(
        twin, loss_fn, torch.optim.Adam(twin.parameters(), lr=rate, eps=eps), batches(STEPS)
    )
    truth = slow_truth.truth_of_moments(moments, None)
    for layer in (None, *truth.names):
        names = truth.names if layer is None else [layer]
        g = [slow_truth.matrix({n: G[n].mean(0) for n in names}, names, 1)[0] for G in truth.G]
        roots = instruments.adam_denominators(g)
        shares = {t: float((eps / (root + eps)).mean()) for t, root in enumerate(roots)}
        assert by_step(run.data, "EpsilonShare", layer) == pytest.approx(shares, rel=1e-6)
        moved = [np.concatenate([(m.after[n].numpy() - theta[n]).ravel() for n in names])
                 for m, theta in zip(moments, truth.theta, strict=True)]  # fmt: skip
        rms = {t: float(np.sqrt((s**2).mean()) / rate) for t, s in enumerate(moved)}
        found = run.data.scalars("EpsilonShare/rms", layer)
        assert dict(zip(*(c.tolist() for c in found), strict=True)) == pytest.approx(rms, rel=1e-6)


OTHERS: dict[str, Callable] = {
    "amsgrad": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_optimizers_divide_by_what_their_step_shows(name: str, tmp_path: Path) -> None:
    """With a huge eps the step is nearly lr m / eps, with share 1; with a tiny one the share is 0."""
    for eps, expected in ((1e6, 1.0), (1e-30, 0.0)):
        model, loss_fn, batches = PROBLEMS["mlp"].make()
        optimizer = OTHERS[name](list(model.parameters()))
        optimizer.param_groups[0]["eps"] = eps
        logdir = tmp_path / f"{eps}"
        with cockpit_core.track(model, loss_fn, optimizer, logdir, config=[q.EpsilonShare()], on_error="raise") as run:
            loop(model, loss_fn, optimizer, batches(2))
        values = by_step(run.data, "EpsilonShare", "2.bias")
        assert values == pytest.approx({0: expected, 1: expected}, abs=1e-5)


def test_sgd_has_no_share_of_epsilon_and_says_so(tmp_path: Path) -> None:
    data = train_tracked(PROBLEMS["mlp"], "sgd", 2, tmp_path / "run", config=[q.EpsilonShare()])
    assert by_step(data, "EpsilonShare") == {}
    assert all("SGD has no second moments" in missing.reason for missing in data.missing)


def test_spike_score_is_the_truth_and_counts_spikes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, loss_fn = nn.Linear(1, 1, bias=False).double(), nn.L1Loss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    losses = [1 + 0.1 * ((7 * t) % 11) for t in range(30)]
    losses[20] = 9.0
    with cockpit_core.track(model, loss_fn, optimizer, tmp_path / "run", config=[q.SpikeScore(window=12)]) as run:
        for loss in losses:
            optimizer.zero_grad()
            output = model(torch.zeros(2, 1, dtype=torch.float64))
            loss_fn(output, torch.full_like(output, loss)).backward()
            optimizer.step()
    expected = {t: instruments.spike_score(losses[max(0, t - 12) : t], losses[t]) for t in range(10, 30)}
    assert by_step(run.data, "SpikeScore") == pytest.approx(expected, rel=1e-9)
    assert expected[20] > 7 > max(value for t, value in expected.items() if t != 20)
    assert run.data.scalars("SpikeScore/share")[1][-1] == pytest.approx(1 / 20)
    assert len([m for m in run.data.missing if "10 tracked losses" in m.reason]) == 10

"""The user's loop, as the tests run it: with tracking and without, not one character different in between."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import cockpit_core
from tests import slow_truth
from tests.problems import PROBLEMS, Problem

OPTIMIZERS: dict[str, Callable[[list], torch.optim.Optimizer]] = {
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.1),
    "momentum": lambda groups: torch.optim.SGD(groups, lr=0.05, momentum=0.9, weight_decay=0.01),
    "adam": lambda groups: torch.optim.Adam(groups, lr=0.01),
}

QUANTITIES = (
    *("Loss", "Time", "Parameters", "ParamNorm", "GradNorm", "Distance", "UpdateSize", "NormTest", "InnerTest"),
    *("OrthoTest", "Alpha", "GradHist1d", "GradHist2d", "MeanGSNR", "EarlyStopping", "CABS", "HessTrace"),
    *("HessMaxEV", "TICDiag", "TICTrace"),
)
ECONOMY = ("Distance", "UpdateSize", "ParamNorm", "GradNorm", "NormTest", "InnerTest", "OrthoTest", "Loss")


HISTOGRAMS = ("GradHist1d", "GradHist2d")


def quantities(*names: str) -> list:
    """With the paper's bins, which the slow truth counts in."""
    options = {name: {"scale": "linear"} if name in HISTOGRAMS else {} for name in names}
    return [getattr(cockpit_core.quantities, name)(**options[name]) for name in names]


def linear(configuration: str) -> list:
    """A configuration with the paper's bins."""
    return quantities(*(quantity.name for quantity in cockpit_core.quantities.configuration(configuration)))


def with_config(options: dict) -> dict:
    """ "economy" at every step, unless something else is asked for: a test does not depend on what a budget allows."""
    return options if {"config", "schedule", "budget"} & options.keys() else {"config": "economy", **options}


def loop(model: nn.Module, loss_fn: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterable) -> list[Tensor]:
    losses = []
    for inputs, targets in batches:
        optimizer.zero_grad()
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def train_tracked(problem: Problem, optimizer: str, steps: int, logdir: Path, **options) -> cockpit_core.RunData:
    """The loop of ``slow_truth.watch_training`` under ``track``; errors inside quantities are errors here."""
    model, loss_fn, batches = problem.make()
    optim = OPTIMIZERS[optimizer](problem.groups(model))
    torch.manual_seed(0)
    options = {"config": quantities(*QUANTITIES), "on_error": "raise", **options}
    with cockpit_core.track(model, loss_fn, optim, logdir=logdir, **with_config(options)):
        loop(model, loss_fn, optim, batches(steps))
    return cockpit_core.load(logdir)


@dataclass
class Training:
    model: nn.Module
    loss_fn: nn.Module
    optimizer: torch.optim.Optimizer
    batches: Callable[[int], Iterable]

    def track(self, logdir: Path, **options) -> cockpit_core.Run:
        options = {"on_error": "raise", **options}
        return cockpit_core.track(self.model, self.loss_fn, self.optimizer, logdir=logdir, **with_config(options))

    def run(self, batches: Iterable) -> list[Tensor]:
        return loop(self.model, self.loss_fn, self.optimizer, batches)


def start(name: str = "mlp", optimizer: str = "sgd") -> Training:
    model, loss_fn, batches = PROBLEMS[name].make()
    torch.manual_seed(0)
    return Training(model, loss_fn, OPTIMIZERS[optimizer](PROBLEMS[name].groups(model)), batches)


def truth_of(training: Training, batches: Iterable, curvature=None) -> slow_truth.RunTruth:
    moments = slow_truth.watch_loop(training.model, training.loss_fn, training.optimizer, batches)
    return slow_truth.truth_of_moments(moments, curvature)


def by_step(data: cockpit_core.RunData, name: str, layer: str | None = None) -> dict[int, float]:
    """Values by step; none at all where a planned quantity never had one."""
    try:
        steps, values = data.scalars(name, layer)
    except KeyError:
        assert layer is None or layer in data.layers
        assert name in {info.name for info in data.header.quantities}
        return {}
    assert len(set(steps.tolist())) == len(steps), f"{name} has two values at one step: {steps.tolist()}"
    return dict(zip(steps.tolist(), values.tolist(), strict=True))


def assert_close(measured: dict[int, float], expected: dict[int, float | None], name: str) -> None:
    """Relative 1e-5 (HessMaxEV 1e-3) at exactly the steps where the truth has a value.

    A gradient test is the root of a difference, which is rounding alone where it should vanish: across the gradient of a
    parameter with a single element there is nothing.
    """
    with_value = {step: value for step, value in expected.items() if value is not None}
    assert measured.keys() == with_value.keys()
    tolerance = 1e-3 if name == "HessMaxEV" else 1e-5
    vanishing = 5e-8 if name.endswith("Test") else 1e-11
    assert measured == pytest.approx(with_value, rel=tolerance, abs=vanishing), name


def assert_alphas_close(data: cockpit_core.RunData, expected: dict[int, dict[str, float | None]]) -> None:
    fits = {fit.step: asdict(fit) for fit in data.alphas}
    assert fits.keys() == expected.keys()
    for step, fit in expected.items():
        assert {key: fits[step][key] for key in fit} == pytest.approx(fit, rel=1e-5, abs=1e-9)


def assert_true(data: cockpit_core.RunData, truth: slow_truth.RunTruth, names: Iterable[str] = ECONOMY) -> None:
    """Each named quantity at each step, network-wide and layer-wise, and every alpha."""
    for name in names:
        assert_close(by_step(data, name), truth.scalars[name], name)
        for layer in truth.names if name in slow_truth.LAYERWISE else ():
            assert_close(by_step(data, name, layer), truth.layers[name][layer], name)
    assert_alphas_close(data, truth.alphas)

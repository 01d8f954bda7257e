"""Likelihoods of counts and of normal densities, as modules and as functions: what always giving the mean would cost."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cockpit_core
from cockpit_core.events.data import load
from cockpit_core.signals.graph_losses import Given, read_graph_loss
from cockpit_core.signals.targets import measure_likelihood


def read(loss, z):
    return read_graph_loss(loss.grad_fn, Given(z.detach(), z.grad_fn))


@pytest.fixture
def parts():
    torch.manual_seed(0)
    layer, x = nn.Linear(3, 2), torch.randn(64, 3)
    out = layer(x)
    return out[:, 0] + 0, F.softplus(out[:, 1]) + 0.1, torch.poisson(torch.full((64,), 2.0))


def test_counts_are_read_from_the_graph(parts) -> None:
    z, _, y = parts
    mean, total = read(F.poisson_nll_loss(z, y), z), read(3 * F.poisson_nll_loss(z, y, reduction="sum"), z)
    assert type(mean.module) is type(total.module) is nn.PoissonNLLLoss
    assert torch.equal(mean.target, y)
    assert torch.allclose(mean.output, z, atol=1e-5)
    assert (mean.addends, total.addends, total.factor) == (1, 64, 3)


def test_counts_against_a_column_of_rates_grow(parts, tmp_path) -> None:
    z, _, y = parts
    found = read(F.poisson_nll_loss(z[:, None], y), z)
    assert (found.growth, found.target) == (64, None)
    assert read(F.poisson_nll_loss(z[:, None], y[:, None]), z).growth == 1
    model, loss_fn = nn.Linear(3, 1), nn.PoissonNLLLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with cockpit_core.track(model, loss_fn, optimizer, tmp_path, config="economy", schedule=1):
        for _ in range(3):
            optimizer.zero_grad()
            loss_fn(model(torch.randn(64, 3)), y).backward()
            optimizer.step()
    assert "loss_broadcast" in {finding.name for finding in cockpit_core.diagnose(tmp_path)}


def test_a_density_is_read_from_the_graph(parts) -> None:
    z, v, y = parts
    loss = read(F.gaussian_nll_loss(z, y, v), z)
    assert type(loss.module) is nn.GaussianNLLLoss
    assert torch.allclose(loss.target, y, atol=1e-5)
    assert (loss.factor, loss.addends) == (1, 1)


def test_what_is_added_is_no_part_of_a_likelihood(parts) -> None:
    """It has no zero: a constant would move what chance is."""
    z, v, y = parts
    assert read(F.poisson_nll_loss(z, y) + z.square().mean(), z) is None
    assert read(F.gaussian_nll_loss(z, y, v, full=True), z) is None


def test_chance_is_the_loss_of_the_best_constant(parts) -> None:
    _, _, y = parts
    counts = measure_likelihood(nn.PoissonNLLLoss(), y).value
    constant = y.mean().log().expand_as(y)
    assert counts["likelihood_chance"] == pytest.approx(float(F.poisson_nll_loss(constant, y)), rel=1e-5)
    perfect = torch.where(y > 0, y - y * y.clamp(min=1).log(), 0.0).mean()
    assert counts["likelihood_floor"] == pytest.approx(float(perfect), rel=1e-5)
    density = measure_likelihood(nn.GaussianNLLLoss(), y).value
    best = float(F.gaussian_nll_loss(y.mean().expand_as(y), y, y.var(correction=0).expand_as(y)))
    assert density["likelihood_chance"] == pytest.approx(best, abs=0.01)  # of the population, not of these 64
    assert measure_likelihood(nn.PoissonNLLLoss(full=True), y).value == {}
    assert measure_likelihood(nn.MSELoss(), y).value == {}


class Both(nn.Module):
    """Gives mean and variance; it is in the log as any other loss that is a function."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        z = self.layer(x)
        return z[:, :1], F.softplus(z[:, 1:]) + 0.1


def test_a_model_that_gives_mean_and_variance(tmp_path) -> None:
    torch.manual_seed(0)
    model, x = Both(), torch.randn(32, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    run = cockpit_core.track(model, optimizer=optimizer, logdir=tmp_path)
    for _ in range(3):
        optimizer.zero_grad()
        mean, spread = model(x)
        F.gaussian_nll_loss(mean, x[:, :1], spread).backward()
        optimizer.step()
    run.close()
    data = load(tmp_path)
    assert data.header.options["loss function"] == "GaussianNLLLoss"
    chance = data.table.columns["signal/likelihood_chance"].get()[1]
    expected = 0.5 * (math.log(float(x[:, 0].var())) + 1)
    assert chance.tolist() == pytest.approx([expected] * len(chance), rel=1e-4)


DENSITIES = {
    "halves": (lambda z, s, y: (0.5 * s + 0.5 * (y - z) ** 2 * torch.exp(-s)).mean(), 1, 1),
    "a half of all": (lambda z, s, y: (s + (z - y) ** 2 * torch.exp(-s)).mean() / 2, 1, 1),
    "divided": (lambda z, s, y: (0.5 * s + (y - z).pow(2) / (2 * s.exp())).mean(), 1, 1),
    "of the deviation": (lambda z, s, y: (s + 0.5 * (y - z) ** 2 * torch.exp(-2 * s)).mean(), 1, 1),
    "the other way round": (lambda z, s, y: (torch.exp(-s) * (y - z) ** 2 + s).sum(), 2, 64),
}


@pytest.mark.parametrize("name", DENSITIES)
def test_a_density_with_the_logarithm_of_its_variance(name: str, parts) -> None:
    z, s, y = parts
    loss, factor, addends = DENSITIES[name]
    value = loss(z, s, y)
    known = read(value, z)
    assert type(known.module) is nn.GaussianNLLLoss
    assert torch.allclose(known.target, y, atol=1e-5)
    assert (known.factor, known.addends) == (pytest.approx(factor), addends)


def test_a_sum_that_is_no_density(parts) -> None:
    z, s, y = parts
    assert read((0.7 * s + 0.5 * (y - z) ** 2 * torch.exp(-s)).mean(), z) is None
    assert read((0.5 * s + 0.5 * (y - z) ** 2 * torch.exp(-z)).mean(), z) is None

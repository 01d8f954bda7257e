"""Gradients inside the loss: an inner training step makes samples meet, a penalty on the inputs' gradient does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

import cockpit_core
from tests import slow_truth

INPUTS, LABELS = (
    torch.randn(6, 5, generator=torch.Generator().manual_seed(1)).double(),
    torch.tensor([0, 1, 2, 2, 0, 1]),
)


def make_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()


def adapt(model: nn.Module, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Parameters after one step of gradient descent, as functions of those before."""
    loss = F.cross_entropy(model(inputs), labels)
    gradients = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    return {name: p - 0.5 * g for (name, p), g in zip(model.named_parameters(), gradients, strict=True)}


def track_steps(model: nn.Module, loss_of: Callable[[nn.Module], Tensor], folder: Path) -> cockpit_core.RunData:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with cockpit_core.track(model, None, optimizer, folder, config="economy") as run:
        for _ in range(3):
            optimizer.zero_grad()
            loss_of(model).mean().backward()
            optimizer.step()
    return run.data


@pytest.mark.filterwarnings("ignore:Cockpit. individual gradients of")
@pytest.mark.parametrize("support", [4, 6])
def test_samples_of_an_inner_step_are_no_individual_samples(support: int, tmp_path: Path) -> None:
    """Those of the inner step change every loss: what is measured is marked as a contribution, or not measured."""

    def losses(model: nn.Module) -> Tensor:
        fast = adapt(model, INPUTS.flip(0)[:support] + 1, LABELS[:support])
        return F.cross_entropy(functional_call(model, fast, (INPUTS,)), LABELS, reduction="none")

    data = track_steps(make_network(), losses, tmp_path / "run")
    assert {layer.method for layer in data.header.layers} <= {"contribution", "not covered"}
    assert any("other samples" in layer.reason or "see each other" in layer.reason for layer in data.header.layers)


@pytest.mark.filterwarnings("ignore:Cockpit. individual gradients of")
def test_a_penalty_on_the_gradient_of_the_inputs_is_exact_or_refused(tmp_path: Path) -> None:
    def losses(model: nn.Module) -> Tensor:
        inputs = INPUTS.clone().requires_grad_()
        outputs = model(inputs)
        (slope,) = torch.autograd.grad(outputs.sum(), inputs, create_graph=True)
        return F.cross_entropy(outputs, LABELS, reduction="none") + 0.3 * slope.square().sum(1)

    model = make_network()
    names, parameters = zip(*model.named_parameters(), strict=True)
    rows = [torch.autograd.grad(l_n, parameters, retain_graph=True, allow_unused=True) for l_n in losses(model)]
    data = track_steps(model, losses, tmp_path / "run")
    methods = {layer.name: layer.method for layer in data.header.layers}
    covered = [name for name in names if methods[name] != "not covered"]
    assert len(covered) >= 2
    for name in covered:
        each = [row[names.index(name)] for row in rows]
        G = np.stack([np.zeros(parameters[names.index(name)].numel()) if g is None else g.flatten() for g in each])
        assert data.scalars("NormTest", name)[1] == pytest.approx(slow_truth.norm_test(G), rel=1e-6)


class Forces(nn.Module):
    """Samples meet before an energy is formed, and what counts is its derivative: they meet in its second one only."""

    def __init__(self) -> None:
        super().__init__()
        self.low, self.high = nn.Linear(5, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.low(x)
        hidden = hidden - hidden.mean(0)
        energy = self.high(torch.tanh(hidden)).sum()
        return torch.autograd.grad(energy, hidden, create_graph=True)[0]


@pytest.mark.filterwarnings("ignore:Cockpit. individual gradients of")
def test_samples_that_meet_below_a_derivative_are_seen(tmp_path: Path) -> None:
    """The derivative of a derivative was taken for the function that its name begins with, and its way back was lost."""
    data = track_steps(Forces().double(), lambda model: model(INPUTS).square().sum(1), tmp_path / "run")
    methods = {layer.name: layer.method for layer in data.header.layers}
    assert {methods["low.weight"], methods["low.bias"]} <= {"contribution", "not covered"}

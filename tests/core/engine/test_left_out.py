"""What is not measured is said."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import cockpit_core

INPUTS = torch.randn(6, 5, generator=torch.Generator().manual_seed(1))
LABELS = torch.tensor([0, 1, 2, 2, 0, 1])


def track(model: nn.Module, folder: Path, config: str = "economy") -> cockpit_core.RunData:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with cockpit_core.track(model, None, optimizer, folder, config=config, on_error="raise") as run:
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(model(INPUTS), LABELS).backward()
            optimizer.step()
    return run.data


class Waves(nn.Module):
    """A filter in the space of frequencies."""

    def __init__(self) -> None:
        super().__init__()
        self.filter, self.head = nn.Parameter(torch.ones(3, dtype=torch.cfloat)), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.fft.irfft(torch.fft.rfft(x) * self.filter, n=5))


def test_complex_parameters_are_left_out_and_the_rest_is_measured(tmp_path: Path) -> None:
    data = track(Waves(), tmp_path / "run")
    methods = {layer.name: layer.method for layer in data.header.layers}
    assert methods == {"filter": "not covered", "head.weight": "rule", "head.bias": "rule"}
    assert "complex" in data.header.layers[0].reason
    assert len(data.scalars("NormTest", "head.weight")[1]) == 3
    assert len(data.scalars("ParamNorm", "filter")[1]) == 3
    assert not data.notices


def test_complex_parameters_have_no_curvature(tmp_path: Path) -> None:
    data = track(Waves(), tmp_path / "run", "full")
    reasons = {missing.name: missing.reason for missing in data.missing}
    assert all("complex" in reasons[name] for name in ("HessTrace", "HessMaxEV", "TICDiag"))
    assert not {"HessTrace", "HessMaxEV", "TICDiag"} & set(data.names)


def test_gradients_that_were_never_zeroed_are_still_covered(tmp_path: Path) -> None:
    """What a step adds to a large ``p.grad`` is known less precisely, down to nothing at all."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-12)
    for p in model.parameters():
        p.grad = torch.full_like(p, 3e5)
    with cockpit_core.track(model, None, optimizer, tmp_path / "run", config="economy", on_error="raise") as run:
        for _ in range(3):
            F.cross_entropy(model(INPUTS), LABELS).backward()
            optimizer.step()
    assert {layer.method for layer in run.data.header.layers} == {"rule"}


class Tied(nn.Module):
    """A function uses the weight of a layer once more: that is only known after the first step."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(5, 4), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.linear(torch.tanh(self.inner(x)), self.inner.weight.t()))


def test_a_part_of_the_network_is_never_called_the_whole(tmp_path: Path) -> None:
    """While a layer waits for another way, the numbers of all layers together are not there; those of the others are."""
    data = track(Tied(), tmp_path / "run")
    assert data.header.covered == 1.0
    assert data.scalars("NormTest", "inner.weight")[0].tolist() == [1, 2]
    assert data.scalars("NormTest", "head.weight")[0].tolist() == [0, 1, 2]
    assert data.scalars("NormTest")[0].tolist() == [1, 2]
    reasons = {missing.name: missing.reason for missing in data.missing if missing.step == 0}
    assert "inner.weight could not be measured as planned" in reasons["NormTest"]
    assert data.histogram_steps("GradHist1d") == [1, 2]

"""A generic fallback that costs much more than its layer says so."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import cockpit_core
from tests.networks import NETWORKS
from tests.training import train_tracked


class Slow(nn.Module):
    """Many small steps one after the other: whatever runs it per sample takes its time."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(4))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(20):
            x = torch.tanh(x @ self.weight)
        return x


def train(folder: Path, steps: int) -> cockpit_core.RunData:
    torch.manual_seed(0)
    model, loss_fn = nn.Sequential(nn.Linear(4, 4), Slow(), nn.Linear(4, 2)).double(), nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with cockpit_core.track(model, loss_fn, optimizer, folder, on_error="raise", config="economy"):
        for _ in range(steps):
            optimizer.zero_grad()
            loss_fn(model(torch.randn(16, 4).double()), torch.zeros(16, 2).double()).backward()
            optimizer.step()
    return cockpit_core.load(folder)


def test_costly_fallback_is_named_in_the_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cockpit_core.engine.fallback_costs.COSTLY", 0.1)
    notes = train(tmp_path / "run", 3).header.notes
    assert len(notes) == 1
    assert notes[0].startswith("1 (Slow) has no rule of its own")


def test_fallback_is_timed_once_and_not_when_cold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cockpit_core.engine.fallback_costs.COSTLY", 0.1)
    assert train(tmp_path / "run", 1).header.notes == []


def test_cheap_ways_are_not_mentioned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cockpit_core.engine.fallback_costs.COSTLY", 0.1)
    assert train_tracked(NETWORKS["layernorm"], "sgd", 3, tmp_path / "run", config="economy").header.notes == []

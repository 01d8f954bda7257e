"""A batch of one: layers that normalise over batch and positions bend the loss of that one sample too."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import cockpit_core


def trace(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """All of the Hessian."""
    names, values = zip(*model.named_parameters(), strict=True)

    def loss(*given: Tensor) -> Tensor:
        return F.cross_entropy(torch.func.functional_call(model, dict(zip(names, given, strict=True)), (x,)), y)

    blocks = torch.autograd.functional.hessian(loss, values)
    return sum(float(blocks[i][i].reshape(len(v.view(-1)), -1).trace()) for i, v in enumerate(values))


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(3), nn.InstanceNorm1d(3), nn.InstanceNorm1d(3, affine=True)])
def test_the_trace_is_that_of_the_whole_hessian(norm: nn.Module, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(2, 3, 2), norm, nn.Tanh(), nn.Flatten(), nn.Linear(15, 3)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x, y = torch.randn(1, 2, 6, dtype=torch.float64), torch.tensor([1])
    expected = trace(model, x, y)
    with cockpit_core.track(model, None, optimizer, tmp_path / "run", config="business", on_error="raise") as run:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert run.data.scalars("HessTrace")[1][0] == pytest.approx(expected, rel=1e-8)

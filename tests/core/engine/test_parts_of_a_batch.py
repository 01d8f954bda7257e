"""Calls of the model on parts of one batch before one loss: marked, unless the loss compares the parts as pairs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import cockpit_core

Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]


def joined(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(torch.cat([model(part) for part in x.chunk(2)]), y)


def added(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    half = len(x) // 2
    return (F.cross_entropy(model(x[:half]), y[:half]) + F.cross_entropy(model(x[half:]), y[half:])) / 2


def stacked(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return torch.stack([F.cross_entropy(model(a), b) for a, b in zip(x.chunk(2), y.chunk(2), strict=True)]).mean()


def compared(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    one, other = (model(part) for part in x.chunk(2))
    return (one - other).pow(2).mean()


def of_views(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    views = torch.stack([x, x + 1])
    return F.cross_entropy(torch.cat([model(views[0]), model(views[1])]), torch.cat([y, y]))


def by_itself(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The first half goes back before the second is seen."""
    (F.cross_entropy(model(x[:4]), y[:4]) / 2).backward()
    return F.cross_entropy(model(x[4:]), y[4:]) / 2


def methods(loss: Loss, folder: Path) -> dict[str, str]:
    """Why, by method."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with cockpit_core.track(model, None, optimizer, folder / "run", config="economy", on_error="raise") as run:
        for _ in range(3):
            x = torch.randn(8, 4, generator=generator, dtype=torch.float64)
            y = torch.randint(3, (8,), generator=generator)
            optimizer.zero_grad()
            loss(model, x, y).backward()
            optimizer.step()
    return {info.method: info.reason for info in run.data.header.layers}


@pytest.mark.parametrize("loss", [joined, added, stacked])
def test_parts_that_lie_side_by_side_are_marked(loss: Loss, tmp_path: Path) -> None:
    found = methods(loss, tmp_path)
    assert found.keys() == {"contribution"}
    assert "parts of a batch" in found["contribution"]


@pytest.mark.parametrize("loss", [compared, of_views, by_itself])
def test_pairs_and_views_are_samples(loss: Loss, tmp_path: Path) -> None:
    assert methods(loss, tmp_path).keys() == {"rule"}

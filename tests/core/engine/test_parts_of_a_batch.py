"""Several calls of the model before one loss: marked, unless they are known to have the same samples, or the loss pairs them."""

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


def copied(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The memory of the first copy may be that of the second."""
    one = model(x[:4].clone())
    return F.cross_entropy(torch.cat([one, model(x[4:].clone())]), y)


def summed(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Batches of a loader, before one backward pass."""
    losses = [F.cross_entropy(model(part), own) for part, own in zip(x.clone().split(2), y.split(2), strict=True)]
    return sum(losses[1:], losses[0]) / 4


def one_by_one(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return torch.stack([F.cross_entropy(model(row[None]), label[None]) for row, label in zip(x, y, strict=True)]).mean()


def real_and_made(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y) + F.cross_entropy(model(torch.zeros_like(x)), y)


def stacked(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return torch.stack([F.cross_entropy(model(a), b) for a, b in zip(x.chunk(2), y.chunk(2), strict=True)]).mean()


def compared(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    one, other = (model(part) for part in x.chunk(2))
    return (one - other).pow(2).mean()


def of_views(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    views = torch.stack([x, x + 1])
    return F.cross_entropy(torch.cat([model(views[0]), model(views[1])]), torch.cat([y, y]))


def twice(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y) + F.cross_entropy(model(x), y)


def paired(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Two views, each with a loss of its own, and one that compares them."""
    one, other = model(x.clone()), model(x + 1)
    return F.cross_entropy(one, y) + F.cross_entropy(other, y) + (one - other).pow(2).sum(1).mean()


def over_time(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    sequence = torch.stack([x, 2 * x, 3 * x], 1)
    return torch.stack([F.cross_entropy(model(sequence[:, t]), y) for t in range(3)]).sum()


def with_state(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The second call works on what the first has given."""
    one = model(x)
    return F.cross_entropy(one, y) + F.cross_entropy(model(F.pad(one, (0, 1))), y)


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


@pytest.mark.parametrize("loss", [joined, added, stacked, copied, summed, one_by_one, real_and_made])
def test_parts_that_lie_side_by_side_are_marked(loss: Loss, tmp_path: Path) -> None:
    found = methods(loss, tmp_path)
    assert found.keys() == {"contribution"}
    assert "side by side" in found["contribution"]


@pytest.mark.parametrize("loss", [compared, of_views, by_itself, twice, paired, over_time, with_state])
def test_pairs_and_views_are_samples(loss: Loss, tmp_path: Path) -> None:
    assert methods(loss, tmp_path).keys() == {"rule"}

"""What the tests of samples share."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import cockpit_core

B = 4


def layers_of(data: cockpit_core.RunData) -> dict[str, tuple[str, str]]:
    return {info.name: (info.method, info.reason) for info in data.header.layers}


def batches(*shape: int, count: int = 3) -> list[tuple]:
    torch.manual_seed(3)
    return [(torch.randn(B, *shape).double(),) for _ in range(count)]


class Shuffled(nn.Module):
    """The rows of all samples in another order, and half of them twice."""

    def __init__(self) -> None:
        super().__init__()
        self.map, self.norm = nn.Linear(3, 3), nn.LayerNorm(3)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, 1)
        order = torch.cat([torch.arange(len(rows)).flip(0), torch.arange(0, len(rows), 2)])
        y = torch.tanh(self.norm(self.map(rows[order])))
        return torch.zeros_like(rows).index_add(0, order, y).view_as(x)


def make_mlp(out: int = 4) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, out)).double()

"""Weights of modules that torch does not know are looked at like its own."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cockpit_core.signals.fresh import find_fresh
from cockpit_core.signals.matrices import list_matrices
from cockpit_core.signals.wiring import check_wiring, find_constant


class GraphLayer(nn.Module):
    """As many write it: a weight of its own, and a table of places beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(12, 8) * 0.1), nn.Parameter(torch.zeros(8))
        self.places, self.w1 = nn.Parameter(torch.zeros(10, 12)), nn.Parameter(torch.full((12, 8), 0.05))

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.weight + self.w1) + self.bias


def test_weights_of_own_modules_cells_and_attention_are_matrices() -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"own": GraphLayer(), "cell": nn.GRUCell(8, 8), "look": nn.MultiheadAttention(8, 2)})
    names = [found.name for found in list_matrices(model)]
    assert names == [
        *("own.weight", "own.w1", "cell.weight_ih", "cell.weight_hh"),
        *("look.in_proj_weight", "look.out_proj.weight"),
    ]
    assert find_constant(model) == (["own.w1"], 6)
    assert "own.places" not in names, "zeros are meant there"
    assert {"own.weight", "cell.weight_ih", "look.in_proj_weight"} <= set(find_fresh(model))
    nn.init.zeros_(model["cell"].weight_hh)
    assert find_constant(model)[0] == ["own.w1", "cell.weight_hh"]


def test_lazy_layers_have_no_weights_yet() -> None:
    model = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.Linear(4, 2), nn.Dropout(0.3))
    numbers = check_wiring(model, nn.MSELoss(), [torch.optim.SGD(model.parameters(), lr=0.1)])
    assert numbers["static_matrices"] == 1
    assert numbers["static_dropout"] == 0.3

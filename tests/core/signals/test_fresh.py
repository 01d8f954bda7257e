"""Weights that nobody has trained are told from those that somebody has."""

from __future__ import annotations

import torch
from torch import nn

from cockpit_core.signals.fresh import find_fresh


def make_model() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.ModuleDict({"conv": nn.Conv2d(3, 8, 3), "flat": nn.Linear(20, 12), "small": nn.Linear(2, 2)})
    layers["rnn"] = nn.GRU(12, 10)
    return layers


def test_fresh_weights_are_found() -> None:
    assert find_fresh(make_model()) == ["conv.weight", "flat.weight", "rnn.weight_ih_l0", "rnn.weight_hh_l0"]


def test_trained_or_otherwise_initialised_ones_are_not() -> None:
    model = make_model()
    nn.init.kaiming_normal_(model["flat"].weight)
    optimizer = torch.optim.Adam(model["conv"].parameters(), lr=1e-2)
    for _ in range(5):
        optimizer.zero_grad()
        model["conv"](torch.randn(4, 3, 6, 6)).square().mean().backward()
        optimizer.step()
    assert find_fresh(model) == ["rnn.weight_ih_l0", "rnn.weight_hh_l0"]


def test_other_usual_initialisations_beside_zero_biases() -> None:
    model = make_model()
    for fill in (nn.init.kaiming_normal_, nn.init.xavier_uniform_, lambda w: nn.init.normal_(w, 0, 0.02)):
        fill(model["flat"].weight)
        nn.init.zeros_(model["flat"].bias)
        assert "flat.weight" in find_fresh(model)
    optimizer = torch.optim.SGD(model["flat"].parameters(), lr=1e-3)
    model["flat"](torch.randn(4, 20)).square().mean().backward()
    optimizer.step()
    assert "flat.weight" not in find_fresh(model), "its bias has moved"
    with torch.no_grad():
        model["flat"].bias.zero_()
        model["flat"].weight.copy_(torch.randn(12, 20) ** 3)
    assert "flat.weight" not in find_fresh(model), "nobody draws such numbers"

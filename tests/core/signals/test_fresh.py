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

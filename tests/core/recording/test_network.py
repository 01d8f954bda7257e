"""A network in one line."""

from __future__ import annotations

import torch
from torch import nn

import cockpit_core
from cockpit_core.recording.network import LONGEST, describe_network


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(8), nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))


class Odd(nn.Module):
    in_features = out_features = 3


def test_modules_stand_in_order_with_activations_and_sizes() -> None:
    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 10))
    assert describe_network(net) == "Conv2d 1→8, ReLU, Flatten, Linear 64→10"
    assert describe_network(nn.Linear(3, 2)) == "Linear 3→2"


def test_equal_blocks_in_a_row_are_counted() -> None:
    net = nn.Sequential(nn.Embedding(50, 8), *(Block() for _ in range(4)), nn.Linear(8, 50))
    block = "Block(LayerNorm, Linear 8→32, GELU, Linear 32→8)"
    assert describe_network(net) == f"Embedding 50→8, 4 × {block}, Linear 8→50"
    pairs = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3)))
    assert describe_network(pairs) == "3 × (Linear 8→8, Tanh)"


def test_what_is_not_of_torch_has_its_name_alone() -> None:
    assert describe_network(nn.Sequential(Odd(), nn.Sequential(), nn.LSTM(4, 6))) == "Odd, LSTM 4→6"


def test_a_long_network_is_cut() -> None:
    text = describe_network(nn.Sequential(*(nn.Linear(i, i + 1) for i in range(1, 400))))
    assert len(text) <= LONGEST
    assert text.startswith("Linear 1→2, ") and text.endswith(", …")


def test_the_header_has_it(tmp_path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    cockpit_core.track(model, nn.CrossEntropyLoss(), optimizer, tmp_path / "run", config="economy").close()
    header = cockpit_core.load(tmp_path / "run").header
    assert header.options["network"] == "Linear 4→4, Sigmoid, Linear 4→2"

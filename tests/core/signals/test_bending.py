"""Networks in which nothing bends are found by their graph, however they are written."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import cockpit_core
from cockpit_core.events.data import load
from cockpit_core.signals.bending import count_linear


class Forgotten(nn.Module):
    """As people write it, with the function that bends left out."""

    def __init__(self, bends=None):
        super().__init__()
        self.table, self.a, self.b, self.c = nn.Embedding(5, 2), nn.Linear(8, 7), nn.Linear(7, 7), nn.Linear(7, 1)
        self.bends = bends or (lambda h: h)

    def forward(self, x: Tensor, k: Tensor) -> Tensor:
        h = torch.cat([x, self.table(k)], 1)
        return self.c(F.dropout(self.bends(self.b(self.a(h))), 0.1)).squeeze(1) / 2


def count(model: nn.Module, *inputs: Tensor) -> int:
    return count_linear(model(*inputs).grad_fn)


X, K = torch.randn(4, 6), torch.tensor([0, 1, 2, 4])


def test_layers_without_anything_between_them() -> None:
    assert count(Forgotten(), X, K) == 3
    assert count(nn.Sequential(nn.Conv1d(1, 3, 3), nn.Flatten(), nn.Linear(12, 2)), X[:, None]) == 2
    assert count(nn.Linear(6, 2), X) == 1


@pytest.mark.parametrize("bends", [F.relu, torch.tanh, F.gelu, torch.square, lambda h: h * h, lambda h: 1 / (h + 9),
                                   lambda h: F.layer_norm(h, (7,)), lambda h: h.softmax(1), lambda h: h.abs()])  # fmt: skip
def test_anything_that_bends_is_seen(bends) -> None:
    assert count(Forgotten(bends), X, K) == 0


def test_attention_is_not_linear() -> None:
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.v = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            return self.q(x) @ self.v(x).T

    assert count(Attention(), X) == 0


def test_it_is_in_the_log(tmp_path) -> None:
    model = Forgotten()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = cockpit_core.track(model, optimizer=optimizer, logdir=tmp_path)
    for _ in range(3):
        optimizer.zero_grad()
        F.mse_loss(model(X, K), X[:, 0]).backward()
        optimizer.step()
    run.close()
    assert load(tmp_path).table.columns["signal/linear_layers"].get()[1].tolist() == [3.0]

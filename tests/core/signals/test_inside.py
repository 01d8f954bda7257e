"""Dropout that is a function, and attention over the batch, found in the graph."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import cockpit_core
from cockpit_core.signals.inside import measure_inside
from cockpit_core.signals.wiring import dropout_of


def find_dropout(root: object) -> float:
    return measure_inside(root, 64).get("graph_dropout", 0.0)


class Net(nn.Module):
    def __init__(self, p: float) -> None:
        super().__init__()
        self.one, self.two, self.p = nn.Linear(8, 64), nn.Linear(64, 3), p

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(F.dropout(self.one(x).relu(), self.p, self.training))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.97])
def test_a_function_is_found(p: float) -> None:
    torch.manual_seed(0)
    loss = F.cross_entropy(Net(p)(torch.randn(64, 8)), torch.zeros(64, dtype=torch.long))
    assert find_dropout(loss.grad_fn) == pytest.approx(p, abs=1e-5)


def test_other_products_are_none() -> None:
    torch.manual_seed(0)
    net = Net(0.5).eval()
    x = torch.randn(64, 8)
    mask = (torch.rand(64, 3) < 0.5).float()
    assert find_dropout((net(x) * mask).sum().grad_fn) == 0, "padding"
    assert find_dropout((net(x) * torch.rand(64, 3)).sum().grad_fn) == 0
    assert find_dropout((net(x) * 3 * mask).sum().grad_fn) == 0
    assert find_dropout((net(x) * (4 * mask)).sum().grad_fn) == 0, "a weight of 4 would drop three of four"


def test_attention_over_the_batch() -> None:
    x = nn.Linear(8, 8)(torch.randn(16, 5, 8))
    scores = x @ x.transpose(1, 2)  # [16, 5, 5]
    wrong, right = ((scores.softmax(dim) @ x).sum().grad_fn for dim in (0, 2))
    assert measure_inside(wrong, 16) == {"batch_attention": 1.0}
    assert set(measure_inside(right, 16)) == {"attention_share"}
    assert measure_inside(wrong, 5) == {}, "time first: it runs over 16 steps of 5 samples"


class Counting(nn.Module):
    """Attention and dropout, and how often it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.map, self.calls = nn.Linear(8, 8), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        h = self.map(x)
        return F.dropout((h @ h.transpose(1, 2)).softmax(-1) @ h, 0.5)


def test_what_is_checkpointed_is_not_computed_again() -> None:
    torch.manual_seed(0)
    net, x = Counting(), torch.randn(16, 5, 8)
    loss = checkpoint(net, x, use_reentrant=False).sum()
    assert measure_inside(loss.grad_fn, 16) == {}
    assert net.calls == 1
    assert set(measure_inside(net(x).sum().grad_fn, 16)) == {"attention_share", "graph_dropout"}


def test_how_sharp_attention_is() -> None:
    """Of a hundred times the scores each query looks at one key; a mask takes no part."""
    torch.manual_seed(0)
    x = nn.Linear(8, 8)(torch.randn(16, 6, 8))
    causal = torch.ones(6, 6).triu(1).bool()
    shares = []
    for factor in (0.0, 0.1, 100.0):
        scores = (factor * x @ x.transpose(1, 2)).masked_fill(causal, -torch.inf)
        shares.append(measure_inside((scores.softmax(-1) @ x).sum().grad_fn, 16)["attention_share"])
    assert shares[0] == pytest.approx(1) and 0.7 < shares[1] < 1 and shares[2] < 0.2


def test_half_precision_inside_of_a_network() -> None:
    net, x = Net(0.0), torch.randn(16, 8)
    with torch.autocast("cpu", torch.float16):
        half = net(x).float().sum()
    assert measure_inside(half.grad_fn, 16) == {"graph_half": 1.0}
    assert measure_inside(net(x).sum().grad_fn, 16) == {}


def test_modules_that_drop_inside() -> None:
    assert dropout_of(nn.LSTM(3, 4, num_layers=2, dropout=0.9)) == 0.9
    assert dropout_of(nn.MultiheadAttention(8, 2, dropout=0.3)) == 0.3
    assert dropout_of(nn.Linear(2, 2)) == 0


def test_a_run_tells_that_it_is_too_high(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = Net(0.97)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    run = cockpit_core.track(net, optimizer=optimizer, logdir=tmp_path, config="economy", schedule=4)
    for _ in range(160):
        x = torch.randn(32, 8)
        optimizer.zero_grad()
        F.cross_entropy(net(x), x[:, :3].argmax(1)).backward()
        optimizer.step()
    run.close()
    assert "dropout_too_high" in [finding.name for finding in cockpit_core.diagnose(tmp_path)]


@pytest.mark.parametrize(("dim", "marked"), [(1, True), (2, False), (-2, True), (-1, False)])
@pytest.mark.parametrize("p", [0.0, 0.2])
def test_attention_whose_weights_add_up_over_the_queries(dim: int, marked: bool, p: float) -> None:
    x = torch.randn(4, 6, 5)
    weights = (nn.Linear(5, 5)(x) @ nn.Linear(5, 5)(x).transpose(1, 2)).softmax(dim)
    out = nn.Linear(5, 3)(F.dropout(weights, p) @ x)
    assert ("query_softmax" in measure_inside(out.sum().grad_fn, 4)) is marked


def test_linear_attention_and_torch_own_are_right() -> None:
    x = torch.randn(4, 6, 8)
    query, key = nn.Linear(8, 8)(x), nn.Linear(8, 8)(x)
    linear = query.softmax(-1) @ (key.softmax(1).transpose(1, 2) @ x)
    assert "query_softmax" not in measure_inside(linear.sum().grad_fn, 4)
    layer = nn.MultiheadAttention(8, 2, batch_first=True)
    assert "query_softmax" not in measure_inside(layer(x, x, x)[0].sum().grad_fn, 4)

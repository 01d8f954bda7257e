"""Cross entropy over a large vocabulary: drawn columns are those of the loss's Hessian, within one matrix of the logits' size."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cockpit_core.curvature import Point, diagonal, tokens
from cockpit_core.curvature.loss_hessian import LossHessian

B, T, V = 2, 3, 5
TARGETS = torch.tensor([[0, 3, 1], [4, -100, 2]])
WEIGHT = torch.tensor([1.0, 0.5, 2.0, 1.0, 3.0], dtype=torch.float64)
LOSSES: dict[str, Callable[[Tensor], Tensor]] = {
    "flattened": lambda o: F.cross_entropy(o.view(-1, V), TARGETS.view(-1)),
    "classes second": lambda o: F.cross_entropy(o.transpose(1, 2), TARGETS, weight=WEIGHT),
    "shifted": lambda o: F.cross_entropy(o[:, :-1].reshape(-1, V), TARGETS[:, 1:].reshape(-1), reduction="sum") / 7,
    "smoothed": lambda o: 0.5 * F.cross_entropy(o.view(-1, V), TARGETS.view(-1), label_smoothing=0.3),
    "one by one": lambda o: F.cross_entropy(o.transpose(1, 2), TARGETS, reduction="none").sum(1).mean(),
}


@pytest.fixture(autouse=True)
def _small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "LARGE", 1)
    monkeypatch.setattr(tokens, "_CHUNK", 4)


def make_point(loss_of: Callable[[Tensor], Tensor]) -> Point:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(7, 4), nn.Tanh(), nn.Linear(4, V)).double()
    outputs = model(torch.randint(7, (B, T)))
    return Point(loss_of(outputs), dict(model.named_parameters()), B, outputs, loss_of)


@pytest.mark.parametrize("name", LOSSES)
def test_columns_are_those_of_the_loss(name: str) -> None:
    point = make_point(LOSSES[name])
    assert point.outputs is not None
    loss, generator, count = LossHessian(point), torch.Generator().manual_seed(1), 1500
    assert loss.form == "tokens"
    drawn = torch.cat([loss.draw(1, generator).columns for _ in range(count)]).reshape(count, B, -1)
    truth = torch.autograd.functional.hessian(LOSSES[name], point.outputs.detach())
    for n in range(B):
        expected = truth[n, :, :, n].reshape(T * V, T * V)
        found = drawn[:, n].T @ drawn[:, n] / count
        assert float((found - expected).abs().max()) < 0.2 * float(expected.max())
        assert float(found.trace()) == pytest.approx(float(expected.trace()), rel=0.1)


NOT_LINEAR: dict[str, Callable[[Tensor], Tensor]] = {
    "focal": lambda o: (
        (1 - o.softmax(-1)).square().gather(2, TARGETS.clamp_min(0).unsqueeze(2))
        * -o.log_softmax(-1).gather(2, TARGETS.clamp_min(0).unsqueeze(2))
    ).mean(),
    "scaled logits": lambda o: F.cross_entropy(3 * o.view(-1, V), TARGETS.view(-1)),
    "squared": lambda o: F.cross_entropy(o.view(-1, V), TARGETS.view(-1)).square(),
    "two of them": lambda o: F.cross_entropy(o.view(-1, V), TARGETS.view(-1)) + o.log_softmax(1).mean(),
    "with a penalty": lambda o: F.cross_entropy(o.view(-1, V), TARGETS.view(-1)) + o.square().mean(),
}


@pytest.mark.parametrize("name", NOT_LINEAR)
def test_other_losses_are_looked_at_as_ever(name: str) -> None:
    assert tokens.read_tokens(make_point(NOT_LINEAR[name])) is None


def test_monte_carlo_gauss_newton_is_the_same_in_the_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    point = make_point(LOSSES["flattened"])
    made = [diagonal(point, "ggn_mc", torch.Generator().manual_seed(s)) for s in range(200)]
    monkeypatch.setattr(tokens, "LARGE", 2**22)
    exact = diagonal(point, "ggn").trace
    traces = torch.tensor([m.trace for m in made])
    assert abs(float(traces.mean()) - exact) < 4 * float(traces.std()) / 200**0.5
    assert max(abs(m.trace - exact) / (m.trace_error or 0) for m in made) < 4


_PEAK = """
import torch
from torch import nn
from torch.nn import functional as F
from cockpit_core.curvature import Limits, Point, diagonal
from tests.peak_memory import megabytes

torch.set_num_threads(1)
V, T, B = 50_000, 64, 8
model = nn.Sequential(nn.Embedding(V, 16), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, V))
x, y = torch.randint(V, (B, T)), torch.randint(V, (B, T))
loss_of = lambda o: F.cross_entropy(o.view(-1, V), y.view(-1))
outputs = model(x)
point = Point(loss_of(outputs), dict(model.named_parameters()), B, outputs, loss_of)
torch.autograd.grad(point.loss, list(model.parameters()), retain_graph=True)
before = megabytes()
diagonal(point, "ggn_mc", limits=Limits(memory_budget=32 * 2**20))
print((megabytes() - before) * 1e6 / outputs.nbytes)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of memory from /proc")
def test_fifty_thousand_classes_take_one_matrix_more_than_the_backward_pass() -> None:
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", _PEAK], capture_output=True, text=True, cwd=root, check=True)
    assert float(done.stdout) < 2  # in logits; twelve if the loss is evaluated once more

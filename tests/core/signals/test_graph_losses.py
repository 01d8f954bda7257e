"""Losses that are functions: kind, output, target and what is added up, read from the graph, against what was written."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import cockpit_core
from cockpit_core.events.data import load
from cockpit_core.signals.graph_losses import Given, read_graph_loss
from cockpit_core.signals.recent import measure_recent

torch.manual_seed(0)
SCORES, LABELS = torch.randn(8, 4), torch.tensor([0, 1, 2, 3, 0, 1, 2, 3])
VALUES, TARGETS, YES = torch.randn(8, 3), torch.randn(8, 3), torch.rand(8, 3).round()
GRID, PLACES = torch.randn(8, 4, 6), torch.arange(48).view(8, 6) % 4
PIXELS = PLACES.view(8, 2, 3)
Loss = Callable[[Tensor], Tensor]
# loss of an output, output, kind, target, factor, addends
CASES: dict[str, tuple[Loss, Tensor, str, Tensor, float, float]] = {
    "cross entropy": (lambda z: F.cross_entropy(z, LABELS), SCORES, "CrossEntropyLoss", LABELS, 1, 1),
    "of logarithms": (lambda z: F.nll_loss(z.log_softmax(1), LABELS) / 4, SCORES, "CrossEntropyLoss", LABELS, 0.25, 1),
    "nll of scores": (lambda z: F.nll_loss(z, LABELS), SCORES, "NLLLoss", LABELS, 1, 1),
    "smoothed": (lambda z: F.cross_entropy(z, LABELS, label_smoothing=0.1), SCORES, "CrossEntropyLoss", LABELS, 0.9, 1),
    "a sum": (lambda z: F.cross_entropy(z, LABELS, reduction="sum"), SCORES, "CrossEntropyLoss", LABELS, 1, 8),
    "of positions": (lambda z: F.cross_entropy(z, PLACES), GRID, "CrossEntropyLoss", PLACES, 1, 1),
    "of pixels": (lambda z: F.cross_entropy(z, PIXELS), GRID.view(8, 4, 2, 3), "CrossEntropyLoss", PIXELS, 1, 1),
    "none, then mean": (lambda z: F.cross_entropy(z, LABELS, reduction="none").mean(), SCORES, "CrossEntropyLoss", LABELS, 1, 1),
    "with a penalty": (lambda z: F.cross_entropy(z, LABELS) + 0.1 * z.square().sum(), SCORES, "CrossEntropyLoss", LABELS, 1, 1),
    "negative": (lambda z: -F.cross_entropy(z, LABELS), SCORES, "CrossEntropyLoss", LABELS, -1, 1),
    "squares": (lambda z: F.mse_loss(z, TARGETS), VALUES, "MSELoss", TARGETS, 1, 1),
    "squares over the batch": (lambda z: F.mse_loss(z, TARGETS, reduction="sum") / 8, VALUES, "MSELoss", TARGETS, 0.125, 24),
    "written squares": (lambda z: ((TARGETS - z) ** 2).mean(), VALUES, "MSELoss", TARGETS, 1, 1),
    "written, a sum per sample": (lambda z: (z - TARGETS).pow(2).sum(1).mean(), VALUES, "MSELoss", TARGETS, 1, 3),
    "distances": (lambda z: F.l1_loss(z, TARGETS), VALUES, "L1Loss", TARGETS, 1, 1),
    "huber": (lambda z: F.huber_loss(z, TARGETS), VALUES, "HuberLoss", TARGETS, 1, 1),
    "yes or no": (lambda z: F.binary_cross_entropy_with_logits(z, YES), VALUES, "BCEWithLogitsLoss", YES, 1, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_it_is_read(name: str) -> None:
    loss, output, kind, target, factor, addends = CASES[name]
    z = output.clone().requires_grad_()
    given = z * 1
    found = read_graph_loss(loss(given).grad_fn, Given(output, given.grad_fn))
    assert found is not None
    assert type(found.module).__name__ == kind
    torch.testing.assert_close(found.target, target)
    torch.testing.assert_close(found.output, output)
    assert (found.factor, found.addends, found.growth) == (pytest.approx(factor), pytest.approx(addends), 1)


def test_what_weighs_samples_one_by_one_is_another_loss() -> None:
    """An advantage may be negative: the product is no cross-entropy that could have the wrong sign."""
    z, advantage = SCORES.clone().requires_grad_(), torch.randn(8)
    assert read_graph_loss((F.cross_entropy(z, LABELS, reduction="none") * advantage).mean().grad_fn, None) is None
    assert read_graph_loss(z.exp().sum().grad_fn, None) is None


def test_a_difference_to_something_else_tells_no_target() -> None:
    """Of what the model gave something was made first, or both sides depend on parameters."""
    z = VALUES.clone().requires_grad_()
    given = z * 1
    for gap in (2 * given - TARGETS, given - z * 2):
        assert read_graph_loss(gap.square().mean().grad_fn, Given(VALUES, given.grad_fn)) is None


def test_a_softmax_before_it_is_seen() -> None:
    z = SCORES.clone().requires_grad_()
    found = read_graph_loss(F.cross_entropy(z.softmax(1), LABELS).grad_fn, Given(SCORES, z.grad_fn))
    assert found is not None
    torch.testing.assert_close(found.output, SCORES.softmax(1))


@pytest.mark.parametrize("written", [False, True])
def test_shapes_that_were_broadcast(written: bool) -> None:
    z, y = torch.randn(8, 1, requires_grad=True), torch.randn(8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = z * 1
        loss = ((given - y) ** 2).mean() if written else F.mse_loss(given, y)
    found = read_graph_loss(loss.grad_fn, Given(z.detach(), given.grad_fn))
    assert found is not None
    assert found.growth == 8


class Own(nn.Module):
    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(z, y) + 1e-3 * z.square().mean()


@pytest.mark.parametrize("own", [None, Own()], ids=["function", "module of one's own"])
def test_a_run_knows_its_loss(own: nn.Module | None, tmp_path) -> None:
    torch.manual_seed(1)
    model = nn.Linear(6, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = cockpit_core.track(model, own, optimizer, tmp_path, config="economy", schedule=4, on_error="raise")
    x, y = torch.randn(16, 6), torch.arange(16) % 4
    losses = []
    for _ in range(9):
        optimizer.zero_grad()
        loss = (own or F.cross_entropy)(model(x), y)
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
    run.close()
    data = load(tmp_path)
    assert data.header.options["loss function"] == "CrossEntropyLoss"
    columns = {name: column.get()[1].tolist() for name, column in data.table.columns.items()}
    assert set(columns["signal/classes"]) == {4.0}
    assert columns["signal/recent_loss"][-1] == pytest.approx(sum(losses) / 9)
    assert columns["signal/recent_count"] == [1, 5, 9]
    assert columns["signal/recent_peak"][-1] == pytest.approx(max(losses))


def test_losses_between_records_are_not_mixed_with_others(tmp_path) -> None:
    """On idle steps the module's loss is seen; where something is added to it, that is not what is differentiated."""
    model, loss_fn = nn.Linear(6, 4), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = cockpit_core.track(model, loss_fn, optimizer, tmp_path, config="economy", schedule=4, on_error="raise")
    x, y = torch.randn(16, 6), torch.arange(16) % 4
    for _ in range(9):
        optimizer.zero_grad()
        (loss_fn(model(x), y) + model.weight.square().sum()).backward()
        optimizer.step()
    run.close()
    assert "signal/recent_loss" not in load(tmp_path).table.columns


def test_a_trend_is_known_with_its_error() -> None:
    noise = torch.randn(100, generator=torch.Generator().manual_seed(0)).tolist()
    assert abs(measure_recent(noise)["recent_trend"]) < 3
    falling = [value - 0.1 * i for i, value in enumerate(noise)]
    assert measure_recent(falling)["recent_trend"] < -10
    assert "recent_trend" not in measure_recent(falling[:7])
    assert measure_recent([]) == {}

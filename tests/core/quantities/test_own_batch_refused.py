"""The samples of a step once more: what cannot be repeated is refused, with the reason."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import cockpit_core
from tests.core.quantities.test_own_batch import NAMES, STEPS, Trained, config, plain, prepare, train
from tests.training import by_step, with_config


def chosen_by_size(it: Trained, x: Tensor, y: Tensor, run) -> None:
    """Where the step ends, the condition may be another one; no graph tells what it is."""
    out = it.model(x)
    it.optimizer.zero_grad()
    torch.where(out > 0, out.square(), -out).mean().backward()
    it.optimizer.step()


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g


def own_function(it: Trained, x: Tensor, y: Tensor, run) -> None:
    it.optimizer.zero_grad()
    F.cross_entropy(Doubled.apply(it.model(x)), y).backward()
    it.optimizer.step()


def hidden_constant(it: Trained, x: Tensor, y: Tensor, run) -> None:
    it.optimizer.zero_grad()
    torch.relu(it.model(x) - 0.5 * x[:, :4]).mean().backward()
    it.optimizer.step()


def overwritten_targets(it: Trained, x: Tensor, y: Tensor, run) -> None:
    y = y.clone()
    it.optimizer.zero_grad()
    F.cross_entropy(it.model(x), y).backward()
    y.zero_()
    it.optimizer.step()


def overwritten(it: Trained, x: Tensor, y: Tensor, run) -> None:
    x = x.clone()
    it.optimizer.zero_grad()
    it.loss_fn(it.model(x), y).backward()
    x.zero_()
    it.optimizer.step()


REFUSED = {
    chosen_by_size: "torch.where", own_function: "it uses Doubled", hidden_constant: "takes Relu of it",
    overwritten: "changed in place", overwritten_targets: "changed in place",
}  # fmt: skip


@pytest.mark.parametrize("step", REFUSED)
def test_what_cannot_be_repeated_is_refused_with_the_reason(step: Callable, tmp_path: Path) -> None:
    data = train(step, tmp_path / "run").data
    for name in NAMES:
        reasons = [missing.reason for missing in data.missing if missing.name == name]
        assert len(reasons) == STEPS
        assert all(REFUSED[step] in reason for reason in reasons), reasons
        assert by_step(data, name) == {}


def test_model_that_is_another_at_each_call_is_refused(tmp_path: Path) -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 4)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return self.linear(x) * (1 + os.urandom(1)[0])

    torch.manual_seed(0)
    model, loss_fn = Counting(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with cockpit_core.track(model, loss_fn, optimizer, tmp_path / "run", config=config(), on_error="raise") as run:
        optimizer.zero_grad()
        loss_fn(model(torch.randn(7, 6)), torch.randint(4, (7,))).backward()
        optimizer.step()
    assert {m.name for m in run.data.missing if "did not come out the same" in m.reason} >= set(NAMES)
    assert float(model.calls) == 1


def test_closure_and_selected_layers_are_refused(tmp_path: Path) -> None:
    it = prepare(optimizer="sgd")
    optimizer = torch.optim.LBFGS(it.model.parameters(), lr=0.1, max_iter=2)
    x, y = next(iter(it.batches(1)))

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = it.loss_fn(it.model(x), y)
        loss.backward()
        return loss

    with cockpit_core.track(it.model, it.loss_fn, optimizer, tmp_path / "a", config=config(), on_error="raise") as run:
        optimizer.step(closure)
    assert all("closure" in m.reason for m in run.data.missing if m.name in NAMES)
    it = prepare()
    options = {"config": config(), "on_error": "raise", "layers": "0.*"}
    with cockpit_core.track(it.model, it.loss_fn, it.optimizer, tmp_path / "b", **with_config(options)) as run:
        plain(it, x, y, run)
    assert {m.name for m in run.data.missing if "layers= leaves out" in m.reason} >= set(NAMES)

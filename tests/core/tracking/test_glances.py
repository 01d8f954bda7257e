"""Where the budget affords no more, some early steps are glanced at: the loss, and the lengths of step and weights."""

from __future__ import annotations

import torch
from torch import nn

import cockpit_core
from cockpit_core.engine.plan import Plan
from cockpit_core.events.data import load
from cockpit_core.quantities import named
from cockpit_core.tracking.within_budget import EARLY, GLANCE, GLANCES, PURSE, Pacer


def make_pacer(loan: float) -> Pacer:
    pacer = Pacer([named("Loss")], 0.1, loan)
    pacer.begun = True
    return pacer


def test_only_where_early_steps_are_on_credit() -> None:
    assert make_pacer(0.15).may_glance(23)
    assert not make_pacer(0.15).may_glance(24)
    assert not make_pacer(0.0).may_glance(23)


def test_the_purse_is_limited() -> None:
    pacer = make_pacer(0.15)
    glance = Plan([named("Loss")], True, by_products_only=True)
    for _ in range(round(PURSE / GLANCE) + 1):
        pacer.learn(glance, {}, 10.0)  # a busy machine
    assert not pacer.may_glance(23)


def test_a_run_by_default_is_seen_all_along(tmp_path) -> None:
    torch.manual_seed(0)
    model, loss_fn = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = cockpit_core.track(model, loss_fn, optimizer, tmp_path)
    x, y = torch.randn(8, 6), torch.arange(8) % 3
    for _ in range(45):
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        optimizer.step()
    run.close()
    data = load(tmp_path)
    rows = data.table.rows()
    for name in (
        "Loss",
        "GradNorm",
        "UpdateSize",
        "ParamNorm",
        "LearningRate",
        "signal/recent_loss",
        "signal/accuracy",
        "signal/input_tail",
    ):
        steps = {int(rows.step[row]) for row in data.table.columns[name].get()[0]}
        assert {2, 5, 11, 23, 43} <= steps, name


def test_steps_do_not_fall_in_with_epochs() -> None:
    """In a fixed order, an epoch of 20 steps would show the same batch at every multiple of 20."""
    for length in range(5, 41):
        late = [step % length for step in sorted(EARLY | GLANCES) if 10 < step < 1000]
        assert max(late.count(place) for place in set(late)) <= 0.7 * len(late), length

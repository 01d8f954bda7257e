"""Which records carry signals, where every step is on record."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn

import cockpit_core
from cockpit_core.events.data import load
from cockpit_core.signals.turns import FIRST, GAPS, Turns


def train(folder: Path, steps: int, trigger: int = -1, batches: int = 0, **options: object) -> Path:
    """``batches``: so many come around in a fixed order; else each is new."""
    torch.manual_seed(0)
    model, loss_fn = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    data = [(torch.randn(16, 4), torch.randint(0, 3, (16,))) for _ in range(batches or steps)]
    with cockpit_core.track(model, loss_fn, optimizer, folder, config=["Loss"], **options) as run:
        for step in range(steps):
            if step == trigger:
                run.trigger("now")
            x, y = data[step % len(data)]
            optimizer.zero_grad()
            loss_fn(model(x), y).backward()
            optimizer.step()
    return folder


def steps_with_signals(folder: Path) -> list[int]:
    steps, values = load(folder).scalars("signal/samples")
    return [int(step) for step, value in zip(steps, values, strict=True) if not np.isnan(value)]


def test_every_step_on_record(tmp_path: Path) -> None:
    """The first ones all, later ones with gaps that differ, the mean of which is four."""
    steps = steps_with_signals(train(tmp_path / "run", 80))
    assert steps[:FIRST] == list(range(FIRST))
    gaps = np.diff(steps[FIRST - 1 :])
    assert set(gaps) == set(GAPS) and 3.5 < gaps.mean() < 4.5


def test_rare_records_carry_them_all(tmp_path: Path) -> None:
    assert steps_with_signals(train(tmp_path / "run", 150, schedule=5)) == list(range(0, 150, 5))


def test_step_that_was_asked_for(tmp_path: Path) -> None:
    plain = steps_with_signals(train(tmp_path / "plain", 60))
    left_out = next(step for step in range(40, 60) if step not in plain)
    assert left_out in steps_with_signals(train(tmp_path / "asked", 60, trigger=left_out))


def test_four_batches_in_a_fixed_order_are_not_one(tmp_path: Path) -> None:
    steps, marks = load(train(tmp_path / "run", 120, batches=4)).scalars("signal/batch_checksum")
    assert len({mark for step, mark in zip(steps, marks, strict=True) if step > FIRST and not np.isnan(mark)}) == 4


def test_step_counter_that_goes_back() -> None:
    turns = Turns()
    for step in range(100, 100 + FIRST):
        turns.take(step)
    assert turns.rests_at(100 + FIRST, asked_for=False)
    assert not turns.rests_at(5, asked_for=False)

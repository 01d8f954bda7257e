"""Losses that nobody knows: what the mean answer would cost takes the place of a chance level."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import cockpit_core
from cockpit_core.diagnosis.facts import Facts
from cockpit_core.diagnosis.view import View
from tests.core.diagnosis.test_diagnoses import both, noise, put
from tests.core.diagnosis.test_harm import severity
from tests.histories import make_header, replay_history

OWN = {"header": make_header("Pinball", "Adam"), "n": 60, "finished": True}
TARGETS = {"target_std": 1.0, "target_scale": 0.7, "target_mean": 0.0, "target_min": -2.0, "target_max": 3.0}
CLASSES = ("classes", "accuracy", "label_top_share", "label_min", "label_max", "label_count", "guess_top_share")


def without_classes(i, scalars) -> None:
    for name in CLASSES:
        scalars.pop("signal/" + name, None)


def compared(level: float, every: int = 4):
    """Now and then the mean answer is tried: the loss is so much of its."""

    def change(i, scalars):
        if i % every == 0:
            scalars |= {"signal/probe/mean": 1.0, "signal/probe/loss": scalars["Loss"]}
            scalars |= {"signal/probe/mean_loss": scalars["Loss"] / level}

    return change


def down(to: float, offset: float = 0.0):
    """From 1 to a share of it in twenty records, on top of a constant."""
    return put(Loss=lambda i: offset + to + (1 - to) * math.exp(-i / 5) + noise(i) / 40, Distance=5.0, **TARGETS)


def view_of(*changes) -> View:
    judge = replay_history(both(without_classes, *changes), header=OWN["header"], n=60)
    return View(judge.history, Facts(OWN["header"]))


def test_a_loss_that_fell_to_that_of_the_mean_answer_has_learned_nothing() -> None:
    view = view_of(down(0.4), compared(0.99))
    assert view.ignores
    assert view.level == pytest.approx(0.99)
    assert view.stuck
    assert not view.learns
    assert view.gain < 0.05 < view.drop


def test_one_that_fell_below_it_has() -> None:
    view = view_of(down(0.4), compared(0.5))
    assert not view.ignores
    assert math.isnan(view.level)
    assert not view.stuck


def test_a_constant_in_the_loss_hides_nothing() -> None:
    """Of 100.4 only 0.4 can fall: the quotient is near 1, and the answers are worth nine tenths of the fall all the same."""
    view = view_of(down(0.4, 100.0), compared(100.4 / (100.4 + 0.55)))
    assert view.own_level > 0.99
    assert not view.ignores


def test_few_or_old_trials_say_nothing() -> None:
    assert not view_of(down(0.4), compared(0.99, every=100)).ignores
    early = both(down(0.4), lambda i, scalars: compared(0.99)(i, scalars) if i < 10 else None)
    assert not view_of(early).ignores


def test_labels_of_others_under_a_loss_of_ones_own() -> None:
    lost = both(without_classes, down(0.4), compared(0.99))
    assert severity("labels_random", lost, **OWN) == "likely"
    assert severity("labels_random", both(without_classes, down(0.4), compared(0.5)), **OWN) == ""


def test_targets_of_a_loss_of_ones_own() -> None:
    far = put(Loss=lambda i: 3000 - i, **(TARGETS | {"target_scale": 3000, "target_std": 1000}), output_rms=0.1)
    assert severity("targets_not_scaled", both(without_classes, far), **OWN) == "likely"


# ---- ends that outputs come to ----


@pytest.mark.parametrize(("low", "high"), [(-0.5, 0.5), (0.0, 1.0)])
@pytest.mark.parametrize("loss", ["Pinball", "L1Loss"])
def test_walls_before_the_targets(low: float, high: float, loss: str) -> None:
    ends = put(output_min=low, output_max=high)
    options = OWN | {"header": make_header(loss, "Adam")}
    short = both(without_classes, down(0.6), ends, put(target_chance=1.0))
    assert severity("output_activation", short, **options) == "likely"
    within = put(target_min=low, target_max=high)
    assert severity("output_activation", both(short, within), **options) == "", "the targets are within reach"
    moving = put(output_min=low, output_max=lambda i: high + 0.02 * math.sin(i))
    one_side = both(short, moving, put(target_min=low))
    assert severity("output_activation", one_side, **options) == "", (
        "an output that nothing holds is never twice the same"
    )


# ---- the whole way ----


class Quantiles(nn.Module):
    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        gap = y[:, None] - z
        levels = torch.tensor([0.1, 0.5, 0.9])
        return torch.maximum(levels * gap, (levels - 1) * gap).mean()


def train(folder: Path, loss_fn, shuffled: bool) -> dict[str, str]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x = torch.randn(20000, 6)
    y = x[:, 0] + x[:, 1] * x[:, 2]
    y = y[torch.randperm(len(y))] if shuffled else y
    with cockpit_core.track(model, loss_fn, optimizer, folder, config="economy", schedule=5):
        for step in range(260):
            rows = slice(64 * step, 64 * step + 64)
            optimizer.zero_grad()
            loss_fn(model(x[rows]), y[rows]).backward()
            optimizer.step()
    return {f.name: f.severity for f in cockpit_core.diagnose(folder)}


@pytest.mark.parametrize("as_module", [True, False])
def test_quantiles_of_targets_that_belong_to_others(tmp_path: Path, as_module: bool) -> None:
    loss_fn = Quantiles() if as_module else Quantiles().forward
    assert train(tmp_path / "apart", loss_fn, True).get("labels_random") == "likely"
    assert not {"labels_random", "not_learning"} & train(tmp_path / "right", loss_fn, False).keys()

"""Tracking on the stand-in device: the CPU's values, and the training bit for bit the same as without."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import cockpit_core
from tests.device.on_device import CPU, STAND_IN, Training, all_values, find_differences, start
from tests.loops import LOOPS
from tests.problems import PROBLEMS
from tests.training import QUANTITIES, quantities

INSTRUMENTS = [name for name in cockpit_core.quantities.ALL if name not in QUANTITIES]
SETS = {"paper": QUANTITIES, "instruments": INSTRUMENTS}
STEPS = 3
QUICK = ("mlp", "cnn", "dropout", "batchnorm", "tied")


def problems() -> list:
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in PROBLEMS]


def check(make: object, folder: Path, **options: object) -> None:
    """``make(device)``: a training. The CPU's own values are held to the truth elsewhere."""
    _, expected = make(CPU).run_tracked(folder / "cpu", **options)  # type: ignore[operator]
    tracked, found = make(STAND_IN.device).run_tracked(folder / "device", **options)  # type: ignore[operator]
    untracked = make(STAND_IN.device).run()  # type: ignore[operator]
    assert find_differences(untracked, tracked) == []
    assert found.header.covered == expected.header.covered
    values = all_values(expected)
    assert len(values) > 10
    assert all_values(found) == pytest.approx(values, rel=1e-6, abs=1e-10, nan_ok=True)
    reasons = [(missing.name, missing.step, missing.reason) for missing in expected.missing]
    assert [(missing.name, missing.step, missing.reason) for missing in found.missing] == reasons


@pytest.mark.filterwarnings("ignore")  # what has no value says so
@pytest.mark.parametrize("kind", SETS)
@pytest.mark.parametrize("problem", problems())
def test_values_are_the_cpu_s_and_training_is_untouched(problem: str, kind: str, tmp_path: Path) -> None:
    check(lambda device: start(problem, device, STEPS), tmp_path, config=quantities(*SETS[kind]))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("curvature", ["ggn", "ggn_mc"])
@pytest.mark.parametrize("problem", ["mlp", pytest.param("cnn", marks=pytest.mark.slow), "residual_tanh"])
def test_other_curvatures(problem: str, curvature: str, tmp_path: Path) -> None:
    check(lambda device: start(problem, device, STEPS), tmp_path, config="full", curvature=curvature)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [
    name if name in ("function", "flattened tokens", "policy gradient") else pytest.param(name, marks=pytest.mark.slow)
    for name in LOOPS
])  # fmt: skip
def test_loops_without_a_loss_module(name: str, tmp_path: Path) -> None:
    """Under ``torch.set_default_device``, which these loops count on for the tensors that they make themselves."""
    found = LOOPS[name]

    def make(device: torch.device) -> Training:
        return Training(
            found.make(), None, lambda model: torch.optim.SGD(model.parameters(), lr=0.1), found.batches(STEPS), device,
            under(device, found.scalar),
        )  # fmt: skip

    check(make, tmp_path, config="full")


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm, self.head = nn.Embedding(5, 4), nn.LSTM(4, 3, batch_first=True), nn.Linear(3, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.lstm(self.embedding(tokens))[0][:, -1])


@pytest.mark.filterwarnings("ignore")
def test_recurrent_layers(tmp_path: Path) -> None:
    def make(device: torch.device) -> Training:
        torch.manual_seed(0)
        model, loss_fn = Reader().double(), nn.CrossEntropyLoss()
        batches = [(torch.randint(5, (6, 4)), torch.randint(3, (6,))) for _ in range(STEPS)]
        return Training(
            model, loss_fn, lambda own: torch.optim.SGD(own.parameters(), lr=0.1), batches, device,
            lambda own, batch: loss_fn(own(batch[0]), batch[1]),
        )  # fmt: skip

    check(make, tmp_path, config="economy")


def under(device: torch.device, scalar: object) -> object:
    def calculate(*args: object) -> object:
        with device:
            return scalar(*args)  # type: ignore[operator]

    return calculate

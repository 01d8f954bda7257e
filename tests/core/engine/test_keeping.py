"""Alpha within the memory budget: what is too large to keep until the step is known is computed again, exactly."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import cockpit_core
from cockpit_core.engine.alpha.kept import rows_are_smaller
from cockpit_core.engine.forward import at
from cockpit_core.layers.contribution import Outer, Positions
from tests import slow_truth
from tests.core.engine.test_neutrality import assert_bit_for_bit, train_untracked
from tests.core.engine.test_neutrality import train_tracked as train_for_neutrality
from tests.networks import NETWORKS
from tests.problems import PROBLEMS
from tests.training import OPTIMIZERS, assert_true, loop, quantities, train_tracked, with_config

EVERYWHERE = {**PROBLEMS, **NETWORKS}


def notes_of(data: cockpit_core.RunData) -> str:
    return "\n".join(data.header.notes)


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
@pytest.mark.parametrize("name", EVERYWHERE)
def test_alpha_is_the_truth_when_nothing_may_be_kept(name: str, optimizer: str, tmp_path: Path) -> None:
    problem = EVERYWHERE[name]
    data = train_tracked(problem, optimizer, 3, tmp_path / "run", config="economy", memory_budget=1)
    assert_true(data, slow_truth.truth_of_run(problem, OPTIMIZERS[optimizer], 3, None), ["Loss", "NormTest"])


@pytest.mark.parametrize("name", ["mlp", "cnn", "dropout", "batchnorm", "lstm", "decoder"])
def test_the_header_says_that_the_pass_is_repeated(name: str, tmp_path: Path) -> None:
    data = train_tracked(EVERYWHERE[name], "adam", 3, tmp_path / "run", config="economy", memory_budget=1)
    assert "Alpha: the forward and backward pass is repeated for" in notes_of(data)


def test_what_fits_the_budget_is_kept(tmp_path: Path) -> None:
    data = train_tracked(PROBLEMS["cnn"], "adam", 3, tmp_path / "run", config="economy")
    assert "Alpha" not in notes_of(data)


@pytest.mark.parametrize("name", ["cnn", "dropout", "batchnorm"])
def test_repeating_is_neutral(name: str, tmp_path: Path) -> None:
    tracked = train_for_neutrality(name, "adam", tmp_path / "run", config="economy", memory_budget=1)
    assert_bit_for_bit(tracked, train_untracked(name, "adam"))


class Unsteady(nn.Module):
    """Draws from a generator that nobody can put back."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 4), nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        drawn = int.from_bytes(os.urandom(4), "little")  # one byte is the same again once in 256 runs
        return self.second(torch.tanh(self.first(inputs)) * (drawn / 2**32))


def test_forward_that_does_not_come_out_the_same_is_noticed_and_then_kept(tmp_path: Path) -> None:
    model, loss_fn = Unsteady().double(), nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(0)
    batches = [
        (torch.randn(6, 5, generator=generator, dtype=torch.float64), torch.randint(3, (6,), generator=generator))
        for _ in range(4)
    ]
    options = {"config": quantities("Alpha"), "memory_budget": 1, "on_error": "raise"}
    with cockpit_core.track(model, loss_fn, optimizer, tmp_path / "run", **with_config(options)) as run:
        loop(model, loss_fn, optimizer, batches)
    assert "gives other outputs" in notes_of(run.data)
    assert "kept beyond memory_budget" in notes_of(run.data)
    assert [fit.step for fit in run.data.alphas] == [1, 2]  # the start of the first step is lost, the others are kept
    assert any("gives other outputs" in missing.reason for missing in run.data.missing)


def test_inputs_changed_in_place_are_noticed(tmp_path: Path) -> None:
    model, loss_fn = nn.Linear(5, 3), nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    inputs, targets = torch.randn(6, 5), torch.randint(3, (6,))
    options = {"config": quantities("Alpha"), "memory_budget": 1, "on_error": "raise"}
    with cockpit_core.track(model, loss_fn, optimizer, tmp_path / "run", **with_config(options)) as run:
        for step in range(4):
            optimizer.zero_grad()
            loss_fn(model(inputs), targets).backward()
            if step > 0:  # the next batch, in the same memory
                inputs.normal_()
            optimizer.step()
    assert "changed in place" in notes_of(run.data)


def test_parameters_are_put_back_after_an_error() -> None:
    p = nn.Parameter(torch.ones(3))
    address = p.data_ptr()
    with pytest.raises(ZeroDivisionError), at({"p": p}, {"p": torch.zeros(3)}):
        1 / int(p.detach().sum())
    assert float(p.detach().sum()) == 3
    assert p.data_ptr() == address


def test_the_smaller_of_gradients_and_what_they_are_made_of() -> None:
    assert not rows_are_smaller(Outer(torch.ones(4, 8), torch.ones(4, 9), torch.Size([8, 9]), 1.0))
    assert rows_are_smaller(Positions(torch.ones(4, 100, 8), torch.ones(4, 100, 9), torch.Size([8, 9]), 1.0))

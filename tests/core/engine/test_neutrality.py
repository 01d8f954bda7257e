"""Bit for bit the same with and without tracking: parameters, buffers, gradients, optimizer and random state."""

from __future__ import annotations

import functools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import cockpit_core
from tests.problems import PROBLEMS
from tests.training import OPTIMIZERS, QUANTITIES, loop, quantities, with_config

STEPS = 30


def everything(model: torch.nn.Module, optimizer: torch.optim.Optimizer, losses: list[Tensor]) -> dict[str, Tensor]:
    state = {f"state {name}": value.clone() for name, value in model.state_dict().items()}
    state |= {f"grad {name}": p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    for i, entry in enumerate(optimizer.state.values()):
        state |= {f"optimizer {i} {key}": torch.as_tensor(value).clone() for key, value in entry.items()}
    return state | {"losses": torch.stack(losses), "random state": torch.get_rng_state()}


@functools.cache
def train_untracked(problem: str, optimizer: str, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    model, loss_fn, batches = PROBLEMS[problem].make(dtype=dtype)
    optim = OPTIMIZERS[optimizer](PROBLEMS[problem].groups(model))
    torch.manual_seed(1)
    return everything(model, optim, loop(model, loss_fn, optim, batches(STEPS)))


def train_tracked(problem: str, optimizer: str, logdir: Path, dtype=torch.float64, **options: Any) -> dict[str, Tensor]:
    model, loss_fn, batches = PROBLEMS[problem].make(dtype=dtype)
    optim = OPTIMIZERS[optimizer](PROBLEMS[problem].groups(model))
    torch.manual_seed(1)
    with cockpit_core.track(model, loss_fn, optim, logdir=logdir, on_error="raise", **with_config(options)) as run:
        losses = loop(model, loss_fn, optim, batches(STEPS))
    assert len(run.data.scalars("Loss")[0]) > 0, "nothing was tracked, so nothing is shown"
    return everything(model, optim, losses)


def assert_bit_for_bit(tracked: dict[str, Tensor], untracked: dict[str, Tensor]) -> None:
    assert tracked.keys() == untracked.keys()
    different = [name for name, value in untracked.items() if not torch.equal(value, tracked[name])]
    assert not different


@pytest.mark.parametrize("schedule", [1, 7])
@pytest.mark.parametrize("config", ["economy", "business", "full"])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_training_is_bit_for_bit_the_same(problem: str, config: str, schedule: int, tmp_path: Path) -> None:
    tracked = train_tracked(problem, "momentum", tmp_path / "run", config=config, schedule=schedule)
    assert_bit_for_bit(tracked, train_untracked(problem, "momentum"))


@pytest.mark.parametrize("problem", ["cnn", "dropout", "batchnorm"])
@pytest.mark.parametrize("curvature", ["hessian", "ggn", "ggn_mc"])
def test_every_quantity_at_once_is_neutral_with_every_curvature(problem: str, curvature: str, tmp_path: Path) -> None:
    config = quantities(*QUANTITIES)
    tracked = train_tracked(problem, "adam", tmp_path / "run", config=config, curvature=curvature, schedule=3)
    assert_bit_for_bit(tracked, train_untracked(problem, "adam"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("problem", ["mlp", "cnn", "dropout", "batchnorm"])
def test_lower_precision_is_neutral_too(problem: str, dtype: torch.dtype, tmp_path: Path) -> None:
    tracked = train_tracked(problem, "momentum", tmp_path / "run", dtype, config="full", schedule=10)
    assert_bit_for_bit(tracked, train_untracked(problem, "momentum", dtype))


def test_random_state_of_python_and_numpy_is_untouched(tmp_path: Path) -> None:
    before = random.getstate(), np.random.get_state()[1].copy()
    train_tracked("dropout", "sgd", tmp_path / "run", config="full", schedule=5)
    assert random.getstate() == before[0]
    assert (np.random.get_state()[1] == before[1]).all()


def test_a_difference_of_one_bit_would_be_noticed(tmp_path: Path) -> None:
    untracked = train_untracked("mlp", "sgd")
    other = {name: value.clone() for name, value in untracked.items()}
    other["state 0.bias"][0] = torch.nextafter(other["state 0.bias"][0], torch.tensor(9.0, dtype=torch.float64))
    with pytest.raises(AssertionError, match=r"0\.bias"):
        assert_bit_for_bit(other, untracked)


def test_closing_leaves_no_hook_behind(tmp_path: Path) -> None:
    model, loss_fn, batches = PROBLEMS["cnn"].make()
    optim = OPTIMIZERS["adam"](PROBLEMS["cnn"].groups(model))

    def hooks() -> int:
        owners = [*model.modules(), *loss_fn.modules(), optim]
        kept = [vars(owner) for owner in owners] + [vars(p) for p in model.parameters()]
        named = (value for attributes in kept for key, value in attributes.items() if "hook" in key)
        return sum(len(value) for value in named if isinstance(value, dict))

    before, forward, step = hooks(), type(model).forward, type(optim).step
    with cockpit_core.track(model, loss_fn, optim, logdir=tmp_path / "run", config="full"):
        loop(model, loss_fn, optim, batches(3))
        assert hooks() > before, (
            "tracking without hooks on model, loss and optimizer: this test looks at the wrong place"
        )
    assert hooks() == before
    assert (type(model).forward, type(optim).step) == (forward, step)
    assert "forward" not in vars(model)
    assert "forward" not in vars(loss_fn)

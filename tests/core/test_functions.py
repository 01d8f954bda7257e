"""A loss that is a function, comes out of the model, or has more parts than the loss module: every number against plain
autograd, one sample at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import cockpit_core
from tests.loops import LOOPS
from tests.slow_truth import truth_of_objective
from tests.training import assert_alphas_close, by_step


def adam(parameters) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


@pytest.mark.parametrize("config", ["economy", "business", "full"])
@pytest.mark.parametrize("name", LOOPS)
def test_loop_is_exact_and_unchanged(name: str, config: str, tmp_path: Path) -> None:
    loop = LOOPS[name]
    truth = truth_of_objective(loop.make(), loop.objective, adam, loop.batches(3))
    model = loop.make()
    optimizer = adam(model.parameters())
    with cockpit_core.track(
        model, optimizer=optimizer, logdir=tmp_path / "run", config=config, on_error="raise"
    ) as run:
        for batch in loop.batches(3):
            optimizer.zero_grad()
            loop.scalar(model, batch).backward()
            optimizer.step()
    for key, expected in truth["scalars"].items():
        if key in {quantity.name for quantity in run.data.header.quantities}:
            tolerance = 1e-3 if key == "HessMaxEV" else 1e-6
            assert by_step(run.data, key) == pytest.approx(expected, rel=tolerance, abs=1e-9), key
    assert_alphas_close(run.data, truth["alphas"])
    for key, p in model.named_parameters():
        assert torch.equal(p, truth["parameters"][key])

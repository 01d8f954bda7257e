"""Alpha at its edges: standing still, uphill, no noise at all."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests import slow_truth
from tests.training import Training, assert_alphas_close, by_step, quantities, start, truth_of


def test_step_of_no_length_stands_still(tmp_path: Path) -> None:
    training = start("mlp")
    training.optimizer = torch.optim.SGD(training.model.parameters(), lr=0.0)
    with training.track(tmp_path / "run", config=quantities("Alpha", "UpdateSize")) as run:
        training.run(training.batches(3))
    assert by_step(run.data, "Alpha") == {0: -1.0, 1: -1.0}
    assert [fit.length for fit in run.data.alphas] == [0.0, 0.0]


@pytest.mark.parametrize("problem", ["mlp", "regression"])
def test_step_uphill_is_kept_below_minus_one(problem: str, tmp_path: Path) -> None:
    training, twin = start(problem), start(problem)
    for each in (training, twin):
        each.optimizer = torch.optim.SGD(each.model.parameters(), lr=0.05, maximize=True)
    batch = next(iter(training.batches(1)))
    with training.track(tmp_path / "run", config=quantities("Alpha")) as run:
        training.run([batch] * 4)
    truth = truth_of(twin, [batch] * 4)
    assert any(fit["alpha"] < -1 for fit in truth.alphas.values()), "the problem does not show what it should"
    assert_alphas_close(run.data, truth.alphas)


def test_samples_without_any_spread_still_fit(tmp_path: Path) -> None:
    """Four times the same sample: the fit replaces variances of zero by 1e-10; the record may show what was seen."""
    training, twin = start("regression"), start("regression")
    batches = [(x[:1].repeat(4, 1), y[:1].repeat(4, 1)) for x, y in training.batches(3)]
    with training.track(tmp_path / "run", config=quantities("Alpha")) as run:
        training.run(batches)
    truth = truth_of(twin, batches)
    assert len(run.data.alphas) == 2
    for fit in run.data.alphas:
        expected = truth.alphas[fit.step]
        assert fit.loss_var_start in (0.0, 1e-10)
        assert fit.loss_start == pytest.approx(expected["loss_start"])
        assert fit.slope_end == pytest.approx(expected["slope_end"])
        assert fit.alpha is not None


def test_last_step_has_none_because_nothing_was_seen_behind_it(tmp_path: Path) -> None:
    training = start("mlp")
    with training.track(tmp_path / "run", config="economy") as run:
        training.run(training.batches(1))
        assert run.data.alphas == []
    assert run.data.alphas == []


def test_alpha_of_a_chosen_part_of_the_network_is_none_of_the_whole(tmp_path: Path) -> None:
    """With layers= the step is projected on what is measured, or there is no value; never a mixture."""
    training = start("mlp")
    with training.track(tmp_path / "run", config="economy", layers=["0.*"]) as run:
        training.run(training.batches(3))
    moments = slow_truth.watch_loop(*(lambda t: (t.model, t.loss_fn, t.optimizer))(start("mlp")), training.batches(3))
    truth = slow_truth.truth_of_moments(moments, None)
    truth.names = ["0.weight", "0.bias"]
    part = {step: slow_truth.alpha_of_step(truth, moments, step) for step in range(2)}
    for fit in run.data.alphas:
        assert fit.length == pytest.approx(part[fit.step]["length"])
        assert fit.slope_start == pytest.approx(part[fit.step]["slope_start"])


def change_in_place(p: Tensor) -> None:
    assert p.grad is not None
    p.grad.clamp_(-0.01, 0.02)


def replace_by_another(p: Tensor) -> None:
    assert p.grad is not None
    p.grad = p.grad.clamp(-0.01, 0.02)


@pytest.mark.parametrize("change", [change_in_place, replace_by_another])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_gradients_that_somebody_begins_to_change_before_the_step(optimizer: str, change: Any, tmp_path: Path) -> None:
    """As long as nobody does, no copy of them is kept; the first time costs at most one alpha, and no later one is wrong."""

    def prepare() -> Training:
        training, steps = start("cnn", optimizer), itertools.count()

        def meddle(optim: torch.optim.Optimizer, *_: Any) -> None:
            if next(steps) >= 2:
                for group in optim.param_groups:
                    for p in group["params"]:
                        change(p)

        training.optimizer.register_step_pre_hook(meddle)
        return training

    training, twin = prepare(), prepare()
    truth = truth_of(twin, twin.batches(6))
    with training.track(tmp_path / "run", config="economy") as run:
        training.run(training.batches(6))
    fits = {fit.step: fit.alpha for fit in run.data.alphas}
    assert {0, 1, 3, 4} <= fits.keys()
    assert fits == pytest.approx({step: truth.alphas[step]["alpha"] for step in fits}, rel=1e-5)
    changed = by_step(run.data, "GradNormClipped")
    assert changed[5] < 0.9 * by_step(run.data, "GradNorm")[5]

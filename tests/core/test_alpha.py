"""Alpha at its edges: standing still, uphill, no noise at all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests import slow_truth
from tests.training import assert_alphas_close, by_step, quantities, start, truth_of


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

"""What else is on record: logged values, epochs, the largest samples, costs, chosen layers."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from cockpit_core.events.table import KINDS
from cockpit_core.recording.by_products import find_top_samples
from cockpit_core.recording.values import line_up
from tests import slow_truth
from tests.training import (
    assert_close,
    by_step,
    start,
    truth_of,
)


def test_logged_values_are_found_by_name(tmp_path: Path) -> None:
    training = start("mlp")
    with training.track(tmp_path / "run", config="economy") as run:
        for step, batch in enumerate(training.batches(3)):
            training.run([batch])
            run.log(valid_accuracy=0.5 + step / 10, epoch=step / 3)
    steps, values = run.data.scalars("valid_accuracy")
    assert values.tolist() == pytest.approx([0.5, 0.6, 0.7])
    assert len(steps) == 3


@pytest.mark.parametrize("value", [torch.tensor(0.25), 1, math.nan])
def test_anything_that_is_a_number_can_be_logged(value: float | Tensor, tmp_path: Path) -> None:
    with start("mlp").track(tmp_path / "run", config="economy") as run:
        run.log(score=value)
    assert run.data.scalars("score")[1].tolist() == pytest.approx([float(value)], nan_ok=True)


def test_epochs_come_from_the_number_of_steps_in_one(tmp_path: Path) -> None:
    training = start("mlp")
    with training.track(tmp_path / "run", config="economy", steps_per_epoch=4) as run:
        training.run(training.batches(5))
    rows = run.data.rows
    assert rows.epoch[rows.kind == KINDS.index("step")].tolist() == pytest.approx([0, 0.25, 0.5, 0.75, 1.0])


def test_epochs_come_from_the_log(tmp_path: Path) -> None:
    training = start("mlp")
    with training.track(tmp_path / "run", config="economy") as run:
        for epoch in range(2):
            run.log(epoch=epoch)
            training.run(training.batches(2))
    rows = run.data.rows
    assert rows.epoch[rows.kind == KINDS.index("log")].tolist() == [0, 1]


def test_five_largest_samples_are_named(tmp_path: Path) -> None:
    training = start("mlp")
    with training.track(tmp_path / "run", config="economy") as run:
        training.run(training.batches(3))
    truth = truth_of(start("mlp"), training.batches(3))
    steps = dict(zip(run.data.rows.seq.tolist(), run.data.rows.step.tolist(), strict=True))
    measured = {steps[seq]: samples for seq, samples in run.data.table.top_samples.between(0, 10**9)}
    for step in range(3):
        norms = np.linalg.norm(slow_truth.matrix(truth.G[step], truth.names, 7), axis=1)
        assert measured[step] == np.argsort(-norms)[:5].tolist()


def test_costs_are_on_record(tmp_path: Path) -> None:
    training = start("mlp")
    with training.track(tmp_path / "run", config="full") as run:
        training.run(training.batches(3))
    whole = by_step(run.data, "cost/step")
    assert list(whole) == [0, 1, 2]
    assert 0 < by_step(run.data, "cost/HessMaxEV")[2] < whole[2]


def test_layers_are_chosen_by_pattern(tmp_path: Path) -> None:
    training = start("residual_tanh")
    with training.track(tmp_path / "run", config="economy", layers=["2.*.weight", "3.bias"]) as run:
        training.run(training.batches(2))
    truth = truth_of(start("residual_tanh"), training.batches(2))
    chosen = {"2.inner.weight", "2.outer.weight", "3.bias"}
    for layer in chosen:
        assert_close(by_step(run.data, "NormTest", layer), truth.layers["NormTest"][layer], "NormTest")
    methods = {layer.name: layer.method for layer in run.data.header.layers}
    assert {name for name, method in methods.items() if method == "not selected"} == set(truth.names) - chosen


def test_pattern_that_matches_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="encoder"):
        start("mlp").track(tmp_path / "run", layers=["encoder.*"])


def test_samples_with_the_longest_gradients() -> None:
    norms = {"a": np.array([1.0, 9.0, 0.0, 4.0, 2.0, 3.0]), "b": np.array([0.0, 0.0, 16.0, 0.0, 0.0, 0.0])}
    assert find_top_samples(norms) == ([2, 1, 3, 5, 4], {"TopSampleNorm": 4.0})
    norms["a"][4] = np.nan
    order, longest = find_top_samples(norms)
    assert order[:2] == [4, 2] and np.isnan(longest["TopSampleNorm"])
    assert find_top_samples({}) == ([], {})


def test_layers_stand_in_the_order_of_the_header() -> None:
    for numbers in ({"a": 1.0, "b": 2.0}, {"b": 2.0, "a": 1.0}):
        values, missing = line_up(numbers, ["a", "b"])
        assert values.tolist() == [1.0, 2.0] and missing.tolist() == [False, False]
    values, missing = line_up({"b": 2.0}, ["a", "b"])
    assert np.isnan(values[0]) and values[1] == 2.0 and missing.tolist() == [True, False]

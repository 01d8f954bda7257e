"""What inputs tell by themselves: categories that were lost, sensors that stand still, targets that are among them."""

from __future__ import annotations

import math

import pytest

from tests.core.diagnosis.test_diagnoses import put
from tests.histories import find, make_header

VALUES = {"target_std": 1.0, "classes": float("nan"), "target_min": -2, "target_max": 2, "accuracy": float("nan")}


def severity(name: str, change, **options) -> str:
    found = find(change, **options)
    return found[name].severity if name in found else ""


def slow(i: int) -> float:
    """Half of the variance of the targets is left."""
    return 0.5 + 0.5 * 0.9**i


def test_samples_that_are_all_alike_tell_no_batches_apart() -> None:
    assert severity("batch_repeated", put(batch_checksum=0.5)) == "likely"
    assert severity("batch_repeated", put(batch_checksum=0.5, batch_duplicates=1)) == ""


@pytest.mark.parametrize(
    ("orders", "batch", "told"),
    [
        (lambda i: 0.25, 32, "likely"),
        (lambda i: 0.25 if i != 1 else 0.5, 32, ""),  # other targets in between: the same place of an epoch
        (lambda i: 0.25, 300, ""),  # all samples that there are
    ],
)
def test_the_same_targets_behind_inputs_that_were_changed(orders, batch: int, told: str) -> None:
    changed = put(batch_checksum=lambda i: math.sin(i) ** 2, target_order=orders, samples=batch)
    assert severity("batch_repeated", changed) == told


def test_the_same_targets_of_the_same_inputs_are_told_as_the_same_batch() -> None:
    found = find(put(batch_checksum=0.5, target_order=0.25))
    assert "samples." in found["batch_repeated"].text
    assert "targets" not in found["batch_repeated"].text


@pytest.mark.parametrize(
    ("constant", "loss", "told"), [(1, slow, "likely"), (0, slow, ""), (1, lambda i: 0.9**i, "advice")]
)
def test_a_category_that_was_lost(constant, loss, told) -> None:
    change = put(**VALUES, Loss=loss, codes_constant=constant, lookups_constant=constant)
    assert severity("constant_feature", change, header=make_header("MSELoss"), n=80, finished=True) == told


def test_lengths_that_are_all_the_same_are_no_category() -> None:
    change = put(**VALUES, Loss=slow, codes_constant=1)
    assert severity("constant_feature", change, header=make_header("MSELoss"), n=80, finished=True) == ""


def test_a_category_that_is_rare_is_not_lost() -> None:
    change = put(**VALUES, Loss=slow, codes_constant=lambda i: i % 5 > 0, lookups_constant=1)
    assert severity("constant_feature", change, header=make_header("MSELoss"), n=80, finished=True) == ""


@pytest.mark.parametrize(
    ("stuck", "loss", "told"), [(0.33, slow, "likely"), (0, slow, ""), (0.33, lambda i: 0.9**i, "")]
)
def test_a_sensor_that_stands_still(stuck, loss, told) -> None:
    change = put(**VALUES, Loss=loss, input_stuck=stuck)
    assert severity("constant_feature", change, header=make_header("MSELoss"), n=80, finished=True) == told


@pytest.mark.parametrize(("found", "told"), [(1, "likely"), (1 / 6, "advice"), (0, "")])
def test_several_targets_among_the_inputs(found, told) -> None:
    """A state of which one part stays as it is has it by right."""
    change = put(**VALUES, input_target=1 if found else 0.99999, input_target_where=3, targets_found=found)
    assert severity("target_in_inputs", change, header=make_header("MSELoss")) == told


def test_one_of_several_targets_and_a_validation_that_falls_behind() -> None:
    change = put(**VALUES, Loss=lambda i: 0.9**i, input_target=1, input_target_where=3, targets_found=1 / 6)
    options = {"header": make_header("MSELoss"), "n": 60}
    assert severity("target_in_inputs", change, logged=lambda i: {"valid_loss": 0.9}, **options) == "likely"
    assert severity("target_in_inputs", change, logged=lambda i: {"valid_loss": 0.9**i}, **options) == "advice"

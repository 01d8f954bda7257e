"""What toys taught: moons, gestures, faces, a rod that cools, number plates, heartbeats, bicycles and poems."""

from __future__ import annotations

import pytest

from tests.core.diagnosis.test_at_the_end import LONG, at, tried
from tests.core.diagnosis.test_diagnoses import STUCK, both, put, values_header, with_fresh
from tests.core.diagnosis.test_harm import severity
from tests.histories import find, make_header, of_codes


def test_long_ways_in_steps_that_could_be_longer() -> None:
    """Labels that mean nothing let weights grow; trial steps say that the rate is not the reason."""
    grows = put(**STUCK, UpdateSize=0.2, ParamNorm=lambda i: 10 + i / 3, Distance=lambda i: 10 + i)
    assert severity("learning_rate_too_high", grows, **LONG) == "likely"
    assert severity("learning_rate_too_high", both(grows, tried(0.01, 0.9)), **LONG) == ""


@pytest.mark.parametrize("later", [16.0, 1.0])
def test_a_record_that_a_spike_set_off_knows_the_last_pass_only(later: float) -> None:
    """Losses are divided by 16 as they should be; at one record fifteen of the passes were not seen."""
    passes = put(passes=lambda i: later if i == 20 else 16.0, root_factor=1 / 16, label_count=1.0, samples=1.0)
    assert severity("accumulation_not_divided", passes, batch=16) == ""


def test_tensors_that_no_optimizer_holds_are_not_zeroed_by_right() -> None:
    left = put(leftover=1, GradNormClipped=lambda i: 1.0 + i)
    assert severity("gradients_not_zeroed", left) == "broken"
    assert severity("gradients_not_zeroed", left, static={"static_unoptimized": 2}) == ""


def test_a_common_class_that_validation_has_less_of() -> None:
    """Nine in ten of the rest are known by heart."""
    uneven = {"label_top_share": 0.55, "accuracy": 0.97, "label_rows": 32}
    looks = lambda right: {"logged": lambda i: {"valid_accuracy": right}, **LONG}  # noqa: E731
    assert severity("class_imbalance", both(at(0.05), put(**uneven)), **looks(0.74)) == "likely"
    assert severity("class_imbalance", both(at(0.05), put(**uneven)), **looks(0.9)) == ""
    even = uneven | {"label_top_share": 0.2}
    assert severity("class_imbalance", both(at(0.05), put(**even)), **looks(0.74)) == ""


def test_a_training_of_a_few_large_batches() -> None:
    loss = {"Loss": lambda i: 2.3 * (0.4 + 0.6 * 0.8**i), "NormTest": 0.3}
    few = {"n": 6, "every": 8, "finished": True}
    assert severity("batch_too_large", put(**loss), batch=600, **few) == "likely"
    assert severity("batch_too_large", put(**loss), batch=32, **few) == ""
    assert severity("batch_too_large", put(**(loss | {"Loss": 1.6})), batch=600, **few) == "", "longer would not help"


@pytest.mark.parametrize(("left", "told"), [(0.15, "likely"), (0.05, "advice")])
def test_a_linear_network_on_real_targets(left: float, told: str) -> None:
    fits = put(Loss=lambda i: left + (1 - left) * 0.7**i, target_std=1.0, target_scale=0.7, target_max=2, target_min=-2)
    options = {"header": values_header(), "static": {"static_linear": 1}, **LONG}
    assert severity("missing_nonlinearity", fits, **options) == told


def test_real_targets_of_others_are_seen_in_validation() -> None:
    """The loss of training falls slowly, by heart; that of validation never."""
    target = {"target_std": 1.0, "target_scale": 0.7, "target_max": 2, "target_min": -2, "loss_std": 1.4}
    falls = both(put(Loss=lambda i: 1.0 - 0.15 * i / 60, **target, UpdateSize=0.02, NormTest=1.1), tried(0.006, 0.7))
    options = {"header": values_header(), "n": 60, "every": 10, "finished": True}
    assert severity("labels_random", falls, logged=lambda i: {"valid_loss": 1.0 + i / 3000}, **options) == "likely"
    assert severity("labels_random", falls, logged=lambda i: {"valid_loss": 1.0 - i / 300}, **options) == ""


def test_steps_of_a_text_that_were_never_long() -> None:
    short = both(put(UpdateSize=0.012, Distance=2.0), tried(2e-3, 0.97), of_codes)
    options = {"header": with_fresh(), **LONG}
    assert severity("learning_rate_too_low", both(at(0.45, 0.1), short), **options) == "likely"
    assert severity("learning_rate_too_low", both(at(0.3, 0.1), short), **options) == "", "much may be beyond anybody"


def test_texts_want_most_of_their_loss() -> None:
    """Attention that was sharp at the first step."""
    sharp = lambda i, scalars: scalars.update({"AttentionEntropy": 0.1})  # noqa: E731
    text = lambda left: both(at(left, accuracy=0.5), sharp, of_codes)  # noqa: E731
    assert find(text(0.55), **LONG)["attention_too_sharp"].severity == "advice"
    assert find(text(0.65), **LONG)["attention_too_sharp"].severity == "likely"


def test_steps_that_are_left_may_be_enough() -> None:
    """The rate halves every fourteen steps, and the loss is gone before it."""
    easy = put(Loss=lambda i: 2.3 * 0.75**i, LearningRate=lambda i: 0.1 * 0.95 ** (2 * i), accuracy=0.9)
    options = {"header": with_fresh(), "every": 2, "n": 30}
    assert "schedule_too_fast" not in find(easy, **options)
    hard = put(Loss=lambda i: 2.3 - 0.8 * (1 - 0.9**i), LearningRate=lambda i: 0.1 * 0.95 ** (2 * i), accuracy=0.4)
    assert find(hard, **options)["schedule_too_fast"].step < 30


@pytest.mark.parametrize(("constant", "name"), [(False, "schedule_too_fast"), (True, "learning_rate_too_low")])
def test_short_steps_that_a_schedule_made_shorter(constant: bool, name: str) -> None:
    """No step was ever long, and at the end steps 16 times as long would do as well."""
    rate = put(LearningRate=lambda i: 0.1 if constant else 0.1 * 0.9**i)
    short = both(at(0.1), put(UpdateSize=0.012, Distance=2.0), tried(2e-3, 0.97), rate)
    told = find(short, header=with_fresh(), **LONG)
    assert [found for found in told if told[found].severity != "advice"] == [name]


def test_yes_or_no_targets_that_count_from_one() -> None:
    binary = make_header("BCEWithLogitsLoss")
    twos = put(Loss=lambda i: -1.0 - i, target_min=1.0, target_max=2.0, target_std=0.5)
    told = find(twos, header=binary)
    assert next(iter(told)) == "labels_off_by_one"
    assert told["labels_off_by_one"].severity == "broken"
    ones = put(target_min=0.0, target_max=1.0, target_std=0.5)
    assert "labels_off_by_one" not in find(ones, header=binary)

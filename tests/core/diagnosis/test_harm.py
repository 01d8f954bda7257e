"""Facts that are an alarm where harm shows: a loss that lingers, answers that stay wrong, labels anywhere among the scores."""

from __future__ import annotations

import math

import pytest

from cockpit_core.diagnosis.judge import Judge
from tests.core.diagnosis.test_diagnoses import FLAT, SLOW, STUCK, both, noise, put, with_fresh
from tests.histories import find, make_header, of_codes, replay_history


def severity(name: str, *args, **options) -> str:
    found = find(*args, **options)
    return found[name].severity if name in found else ""


def falling(share: float, **more):
    """From chance to a share of it, half of the way in 40 steps, and then hardly at all."""
    return put(Loss=lambda i: 2.3 * (share + (1 - share) * math.exp(-i / 6)) + noise(i) / 20, **more)


# ---- labels ----

NOISY = {"label_rows": 64, "wrong_rank": 0.48, "wrong_low": 0.5}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (falling(0.7, accuracy=0.6, **NOISY), "likely"),  # four of ten are wrong
        (falling(0.6, accuracy=0.8, **NOISY), "advice"),
        (falling(0.7, accuracy=0.6, **(NOISY | {"wrong_rank": 0.12, "wrong_low": 0.08})), ""),  # they are hard
        (falling(0.7, accuracy=0.6, **(NOISY | {"classes": 3})), ""),
        (falling(0.7, accuracy=0.3, **NOISY), ""),  # nothing is known yet: all labels are anywhere
        (falling(0.7, accuracy=0.6, **(NOISY | {"label_rows": 2})), ""),
    ],
)
def test_labels_that_are_anywhere_among_the_scores(change, told: str) -> None:
    assert severity("label_noise", change) == told


def test_noise_that_validation_does_not_suffer_from_is_advice() -> None:
    change = falling(0.7, accuracy=0.6, **NOISY)
    assert severity("label_noise", change, logged=lambda i: {"valid_accuracy": 0.96}) == "advice"
    assert severity("label_noise", change, logged=lambda i: {"valid_accuracy": 0.7}) == "likely"


def test_rows_between_records_count() -> None:
    few = falling(0.7, accuracy=0.6, label_rows=2, wrong_rank=0.48, wrong_low=0.5)
    more = {"between_rows": 64, "between_accuracy": 0.6, "between_rank": 0.48, "between_low": 0.5}

    def both(i, scalars):
        few(i, scalars)
        put(**more)(i, scalars)

    assert severity("label_noise", few) == ""
    found = find(both)["label_noise"]
    assert found.severity == "likely"
    assert {item.name: round(item.value, 2) for item in found.evidence} == {
        "wrong_rank": 0.48, "flipped": 0.4, "accuracy": 0.6,
    }  # fmt: skip


# ---- softmax taken twice ----


@pytest.mark.parametrize(
    ("accuracy", "told"), [(lambda i: min(0.95, 0.1 + i / 12), "advice"), (0.45, "broken"), (0.2, "broken")]
)
def test_softmax_taken_twice_is_broken_where_answers_stay_wrong(accuracy, told: str) -> None:
    twice = {
        "row_sum_error": 1e-7,
        "output_min": 0,
        "output_max": 1,
        "label_rows": 32,
        "wrong_rank": 0.1,
        "wrong_low": 0.1,
    }
    assert severity("double_softmax", put(accuracy=accuracy, **twice)) == told


# ---- a loss that lingers ----

MOMENTUM = {"header": make_header(momentum="0.999")}


def test_momentum_is_an_alarm_where_the_loss_lingers() -> None:
    assert severity("momentum_too_high", falling(0.4), **MOMENTUM) == "likely"
    assert severity("momentum_too_high", falling(0.15), **MOMENTUM) != "likely"
    many = both(falling(0.4), of_codes)  # a text: nobody could know how much of it can be learned
    assert severity("momentum_too_high", many, **MOMENTUM) != "likely"


def test_dead_units_are_an_alarm_where_the_loss_lingers() -> None:
    assert severity("dead_units", falling(0.4, dead=0.75, accuracy=0.6)) == "likely"
    assert severity("dead_units", falling(0.1, dead=0.75, accuracy=0.9)) in ("", "advice")


def test_a_small_part_behind_a_cut_is_an_alarm_where_the_loss_lingers() -> None:
    header = with_fresh()
    for place, size in ((0, 100), (1, 10), (2, 5000), (4, 5000)):
        header.layers[place].size = size
    cut = {"ungraded_prefix": 2, "ungraded_none": 2, "ungraded_where": 1}
    assert severity("graph_detached", falling(0.4, **cut), header=header) == "broken"
    assert severity("graph_detached", falling(0.1, **cut), header=header) == "advice"
    assert severity("graph_detached", falling(0.2, **cut), header=header) == "advice"
    assert severity("graph_detached", falling(0.2, **cut), header=header, finished=True) == "broken", (
        "so much is left in the end"
    )
    assert severity("graph_detached", falling(0.05, **cut), header=header, finished=True) == "advice"


def test_few_samples_whose_noise_is_not_known() -> None:
    change = falling(0.5, NormTest=math.nan, label_count=2)
    assert severity("batch_too_small", change, batch=2) == "likely"
    assert severity("batch_too_small", falling(0.1, NormTest=math.nan, label_count=2), batch=2) == ""
    assert severity("batch_too_small", change, batch=32) == ""


def test_one_outlier_is_enough_where_the_loss_jumps() -> None:
    def jumps(i, scalars):
        falling(0.5)(i, scalars)
        scalars["signal/input_tail"] = 15.0 if i == 14 else 1.4
        if i == 14:
            scalars["Loss"] = 9.0

    assert severity("input_outliers", jumps) == "likely"
    assert severity("input_outliers", falling(0.5, input_tail=lambda i: 15 if i == 14 else 1.4)) == ""


def test_most_features_are_constant_and_the_loss_lingers() -> None:
    assert severity("constant_feature", falling(0.4, input_constant=0.7)) == "likely"
    assert severity("constant_feature", falling(0.1, input_constant=0.7)) == "advice"


# ---- losses that get what they are not made for ----


def test_targets_that_are_no_probabilities() -> None:
    swapped = put(Loss=lambda i: 0.8 - 30 * i, target_min=-3, target_max=50)
    found = find(swapped, header=make_header("BCEWithLogitsLoss"))
    assert found["loss_sign"].severity == "broken" and "between 0 and 1" in found["loss_sign"].text


def test_scores_in_place_of_their_logarithms() -> None:
    found = find(put(Loss=lambda i: 0.1 - 30 * i, output_max=40), header=make_header("NLLLoss"))
    assert found["loss_sign"].severity == "broken" and "NLLLoss expects" in found["loss_sign"].text


def test_a_network_that_gives_nothing_but_zeros() -> None:
    zeros = put(**STUCK, output_min=0, output_max=0)
    assert severity("output_activation", zeros) == "likely"
    assert severity("output_activation", put(**STUCK, output_min=-0.1, output_max=0.1)) == ""


# ---- rates ----


def test_a_warm_up_without_end() -> None:
    slow = {"steps_to_go": 30_000, "UpdateSize": 1e-5, "Distance": 0.001, "HessMaxEV": 0.01, "NormTest": 0.5}
    rises = put(**FLAT, **slow, LearningRate=lambda i: 1e-6 * (i + 1))
    assert severity("learning_rate_too_low", rises, n=28) == ""
    found = find(rises, n=60)["learning_rate_too_low"]
    assert "still rises" in found.text and "warm-up" in found.remedy


def test_a_loss_that_jumped_and_never_came_down_far_enough() -> None:
    thrown = put(
        Loss=lambda i: 2.3 if i == 0 else 20.0 if i < 3 else 1.9 + noise(i), UpdateSize=lambda i: 6 if i < 3 else 0.1
    )
    assert severity("learning_rate_too_high", thrown) == "likely"
    came = put(
        Loss=lambda i: 2.3 if i == 0 else 20.0 if i < 3 else 1.9 * 0.9**i, UpdateSize=lambda i: 4.5 if i < 3 else 0.1
    )
    assert severity("learning_rate_too_high", came) == ""


def test_decay_of_adam_that_does_no_harm() -> None:
    header = make_header("CrossEntropyLoss", "NAdam", weight_decay="0.01")
    shrinks = {"ParamNorm": lambda i: 10 * 0.98**i, "GradNormClipped": 0.06, "UpdateSize": 0.1}
    assert severity("weight_decay_too_high", put(**shrinks), header=header) == ""
    assert severity("weight_decay_too_high", put(**STUCK, **shrinks), header=header) == "likely"


# ---- weights ----


def test_constant_weights_are_broken_where_nothing_is_learned() -> None:
    static = {"static_constant": 3}
    assert severity("init_constant", put(**STUCK), static=static) == "broken"
    assert severity("init_constant", None, static=static, n=3) == "advice"
    assert severity("init_constant", put(accuracy=lambda i: 0.1 + i / 20), static=static) == "advice"


def test_layers_that_were_frozen_at_random() -> None:
    header = make_header()
    header.options["frozen fresh weights"] = "0.weight"
    header.options["frozen fresh weights"] = "0.weight\n1.weight"
    frozen = {"header": header, "static": {"static_frozen": 2, "static_matrices": 1}}
    few = {"header": header, "static": {"static_frozen": 2, "static_matrices": 3}}
    found = find(put(**SLOW), **frozen)["parameters_not_optimized"]
    assert found.severity == "likely" and found.layers == ["0.weight", "1.weight"] and "frozen" in found.text
    assert severity("parameters_not_optimized", None, **frozen) == ""
    assert severity("parameters_not_optimized", put(**SLOW), **few) == "", "a first layer of random features"
    assert severity("parameters_not_optimized", put(**SLOW), static={"static_frozen": 2}) == ""


# ---- what follows from what ----


def test_what_is_not_there_leads_nowhere() -> None:
    """A repeated batch explains data that are not shuffled, which would explain a rate that is too high."""
    judge = Judge()
    assert judge._consequences("batch_repeated", {"learning_rate_too_high"}) == []
    both = judge._consequences("batch_repeated", {"data_not_shuffled", "learning_rate_too_high"})
    assert both == ["data_not_shuffled", "learning_rate_too_high"]
    high = put(Loss=lambda i: 2.3 if i < 3 else 90 + i, accuracy=0.1, UpdateSize=8.0, batch_checksum=0.5)
    found = replay_history(high, batch=500).found
    assert found["batch_repeated"].severity == "advice"
    assert found["learning_rate_too_high"].severity == "likely"


def test_dead_from_the_start_it_is_not_the_decay() -> None:
    shrinks = {"ParamNorm": lambda i: 10 * 0.97**i, "GradNormClipped": 0.06, "dead": 1.0}
    header = make_header("CrossEntropyLoss", "Adam", weight_decay="0.01")
    found = find(put(**STUCK, **shrinks), header=header)
    assert next(iter(found)) == "dead_units" and "weight_decay_too_high" not in found


def test_units_that_have_come_back_are_not_dead() -> None:
    """Behind weights of zeros all units are alike at first."""
    back = put(**STUCK, dead=lambda i: 1.0 if i < 12 else 0.1)
    told = replay_history(back, static={"static_constant": 3}, n=16).found["dead_units"]
    assert told.severity == "advice"
    stay = put(**STUCK, dead=1.0)
    assert replay_history(stay, static={"static_constant": 3}).found["dead_units"].severity == "broken"


@pytest.mark.parametrize(("batch", "told"), [(20, "likely"), (64, "likely"), (100, "advice"), (500, "advice")])
def test_few_samples_are_hardly_all_that_there_are(batch: int, told: str) -> None:
    assert severity("batch_repeated", put(batch_checksum=0.5), batch=batch) == told


def test_a_loss_that_runs_away_below_zero_has_the_wrong_sign_whatever_it_is() -> None:
    """A likelihood that is maximised: some samples were above zero at first, so that it was taken for one that may be below."""
    away = put(Loss=lambda i: 0.3 - 10.0**i if i < 12 else -(10.0**12), loss_max=0.3)
    assert severity("loss_sign", away, header=make_header(loss="GaussianNLLLoss")) == "likely"
    falls = put(Loss=lambda i: 3 - i / 4, loss_max=0.3)  # a density that becomes narrow
    assert severity("loss_sign", falls, header=make_header(loss="GaussianNLLLoss")) == ""

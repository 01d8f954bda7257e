"""Facts whose size alone says harm are alarms at the first tracked steps; smaller ones wait until harm shows, and where none
can show they stay advice."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cockpit_core.diagnosis.view import View
from tests.core.diagnosis.test_diagnoses import (
    FLAT,
    STUCK,
    both,
    noise,
    put,
    values_header,
    vectors,
    with_fresh,
)
from tests.histories import LAYERS, find, make_header, of_codes, replay_history

MATRICES = [name for name in LAYERS if "weight" in name]


def severity(name: str, *args, **options) -> str:
    found = find(*args, **options)
    return found[name].severity if name in found else ""


def fresh(optimizer: str = "SGD", **options: str):
    header = make_header(optimizer=optimizer, **options)
    header.options["fresh weights"] = "\n".join(MATRICES)
    header.options["constant weights"] = "\n".join(MATRICES)
    return header


# ---- nothing gets through the network ----

FADING = [1e-5, 0.1, 1e-4, 0.1, 1.0, 1.0]


@pytest.mark.parametrize(
    ("spread", "gradients", "lengths", "told"),
    [
        (1e-6, FADING, [4.0] * 6, "likely"),
        (1e-2, FADING, [4.0] * 6, ""),  # outputs depend on inputs: something gets through
        (1e-6, [0.4] * 6, [4.0] * 6, ""),
        (1e-6, FADING, [4, 4, 4, 4, 0.01, 4], ""),  # a last layer that begins small grows soon
    ],
)
def test_outputs_and_gradients_that_vanish_from_the_first_step_on(spread, gradients, lengths, told: str) -> None:
    layers = vectors(GradNorm=gradients, ParamNorm=lengths)
    assert severity("vanishing_gradients", put(**FLAT, output_spread=spread), layers=layers, n=2) == told


def test_a_small_last_layer_is_no_reason_for_what_is_slow() -> None:
    change = put(**STUCK, output_spread=1e-6)
    small, usual = (vectors(GradNorm=[0.3, 0.3, 0.3, 0.3, 1, 1], ParamNorm=[4, 4, 4, 4, x, 4]) for x in (0.01, 4))
    assert severity("vanishing_gradients", change, layers=small) == ""
    assert severity("vanishing_gradients", change, layers=usual) == "likely"


@pytest.mark.parametrize(
    ("spread", "header", "told"),
    [
        (1e-7, make_header(), "likely"),
        (1e-4, make_header(), "advice"),  # a signal that one can see: it may grow
        (1e-7, make_header(optimizer="Adam"), "advice"),  # at this rate, steps of its own make usual weights in four
    ],
)
def test_weights_that_let_no_signal_through(spread, header, told: str) -> None:
    layers = vectors(ParamNorm=[0.05] * 6)
    assert severity("init_too_small", put(**FLAT, output_spread=spread), layers=layers, header=header, n=3) == told


@pytest.mark.parametrize(
    ("gradients", "moves", "told"),
    [
        ([0, 0, 0, 0, 0, 0.4], 0.1, "broken"),
        ([0, 0, 0, 0, 0, 0.4], 0.0, "advice"),  # no step was made yet
        ([0.1, 0.1, 0.1, 0.1, 0.1, 0.4], 0.1, "advice"),  # they move: dropout or inputs may make units different
    ],
)
def test_constant_weights_without_a_gradient(gradients, moves: float, told: str) -> None:
    change, layers = put(**FLAT, UpdateSize=moves, output_spread=0), vectors(GradNorm=gradients)
    static = {"static_constant": 3}
    assert severity("init_constant", change, layers=layers, static=static, header=fresh(), n=3) == told


@pytest.mark.parametrize(("spread", "told"), [(1e-8, "broken"), (0.3, "advice")])
def test_a_dead_layer_that_signals_get_past(spread: float, told: str) -> None:
    change = put(**FLAT, dead=1.0, output_spread=spread)
    assert severity("dead_units", change, n=2) == told
    assert severity("dead_units", change, n=12) == "broken"  # and nothing is learned
    high = put(Loss=lambda i: 2.9 + 8 * math.exp(-i), accuracy=0.1, dead=1.0, output_spread=spread)
    assert replay_history(high, n=12).found["dead_units"].severity == "broken"  # it falls, and is still above chance


# ---- settings that leave nothing to hope for ----


@pytest.mark.parametrize(("p", "told"), [(0.97, "likely"), (0.9, "advice")])
def test_dropout_of_nearly_all(p: float, told: str) -> None:
    assert severity("dropout_too_high", put(**FLAT), static={"static_dropout": p}, n=9) == told


def test_dropout_that_signals_get_past() -> None:
    falls = put(Loss=lambda i: 2.3 * (0.4 + 0.6 * 0.9**i), accuracy=0.4)
    told = severity("dropout_too_high", falls, static={"static_dropout": 0.97}, n=20)
    assert told == "advice"


@pytest.mark.parametrize(
    ("eps", "size", "told"),
    [("0.1", 0.01, "likely"), ("0.1", 0.05, "advice"), ("0.001", 0.01, "advice")],  # a rate that makes up for it
)
def test_an_eps_that_makes_all_steps_short(eps: str, size: float, told: str) -> None:
    change = put(**FLAT, UpdateSize=size)
    assert severity("adam_eps_too_large", change, header=make_header(optimizer="Adam", eps=eps), n=3, every=3) == told


@pytest.mark.parametrize(("clipped", "told"), [(1e-4, "likely"), (0.0, ""), (0.05, "")])
def test_clipping_before_unscaling_shows_in_three_records(clipped: float, told: str) -> None:
    change = put(**FLAT, loss_scale=65536, GradNormClipped=clipped)
    assert severity("clipped_before_unscaled", change, n=3) == told


def test_a_target_among_the_inputs_shows_in_three_records() -> None:
    assert severity("target_in_inputs", put(input_target=1, input_target_where=3), n=3) == "likely"
    assert severity("target_in_inputs", put(input_target=1, input_target_where=lambda i: i), n=3) == ""
    assert severity("target_in_inputs", put(input_target=1, input_target_where=3), n=2) == ""


def decaying(by: float, **more):
    return put(**FLAT, LearningRate=lambda i: 0.1 * by ** (2 * i), **more)


def test_a_schedule_whose_steps_add_up_to_a_few() -> None:
    assert severity("schedule_too_fast", decaying(0.95), header=fresh(), n=14, every=2) == "likely"
    assert severity("schedule_too_fast", decaying(0.95), header=fresh(), n=3, every=2) == "", "easy data need no more"
    assert severity("schedule_too_fast", decaying(0.7), header=fresh(), n=4, every=2) == "likely", "it is over already"
    assert severity("schedule_too_fast", decaying(0.98), header=fresh(), n=14, every=2) == ""  # fifty steps may do
    trained = make_header()
    assert severity("schedule_too_fast", decaying(0.95), header=trained, n=12, every=2) == ""
    linear = put(**FLAT, LearningRate=lambda i: 0.1 * (1 - 2 * i / 24))
    assert severity("schedule_too_fast", linear, header=fresh(), n=3, every=2) == ""
    late = put(**FLAT, LearningRate=lambda i: 0.1 * 0.95 ** (2 * max(0, i - 40)))  # after eighty steps at the highest
    found = find(late, header=fresh(), n=60, every=2).get("schedule_too_fast")
    assert found is None or "will add up" not in found.text


def test_a_rate_that_is_gone_after_some_steps() -> None:
    gone = put(**FLAT, LearningRate=lambda i: 0.1 if i < 2 else 1e-9)
    assert severity("schedule_too_fast", gone, n=8) == "likely"
    learned = put(LearningRate=lambda i: 0.1 if i < 2 else 1e-9, Loss=lambda i: 1.0 + noise(i) / 10)
    assert severity("schedule_too_fast", learned, n=8) == ""


def test_few_steps_of_large_batches_explain_a_schedule_by_epochs() -> None:
    change = both(decaying(0.9), put(NormTest=0.1, Loss=lambda i: 2.3 - i / 8))
    found = find(change, header=fresh(), n=8, every=2, batch=256, finished=True)
    assert "schedule_too_fast" in found["batch_too_large"].explains
    many = find(both(decaying(0.9), put(NormTest=0.01)), header=fresh(), n=60, every=2, batch=512)
    assert many["batch_too_large"].severity == "advice"
    assert many["schedule_too_fast"].severity == "likely"


def test_short_steps_that_need_thousands_more() -> None:
    short = {"UpdateSize": 0.008, "Distance": 0.01, "HessMaxEV": math.nan}
    adam, name = {"header": make_header(optimizer="Adam"), "n": 3}, "learning_rate_too_low"
    assert severity(name, put(**FLAT, **short, steps_to_go=5000), **adam) == "likely"
    assert severity(name, put(**FLAT, **short, steps_to_go=5000), n=3) == ""  # those of SGD grow with the gradient
    assert severity(name, put(**FLAT, **short, steps_to_go=1000), **adam) == ""
    usual = short | {"UpdateSize": 0.05}
    assert severity(name, put(**FLAT, **usual, steps_to_go=5000), **adam) == ""


def test_tiny_steps_whose_noise_is_not_known() -> None:
    tiny = {"UpdateSize": 1e-4, "Distance": 0.01, "HessMaxEV": math.nan, "NormTest": math.nan, "steps_to_go": 400}
    assert severity("learning_rate_too_low", put(**FLAT, **tiny), n=3) == "likely"


# ---- few records ----


def test_one_look_at_a_cut_graph_is_enough_where_gradients_are_missing() -> None:
    def once(i, scalars):
        put(**FLAT)(i, scalars)
        for name, value in {"ungraded_prefix": 4, "ungraded_none": 4, "ungraded_where": 3}.items():
            scalars.pop(f"signal/{name}", None)
            if i == 0:
                scalars[f"signal/{name}"] = float(value)

    missing = vectors(GradNorm=[np.nan] * 4 + [0.4] * 2)
    assert severity("graph_detached", once, layers=missing, header=with_fresh(), n=4) == "broken"
    assert severity("graph_detached", once, header=with_fresh(), n=4) == ""


def test_batches_that_are_nearly_sorted_show_in_five() -> None:
    nearly = put(**FLAT, target_mean=lambda i: 4.5 + (i > 1) * (2.6 if i % 2 else -2.6), target_variance=8)
    assert severity("data_not_shuffled", nearly, n=6) == "likely"
    assert severity("data_not_shuffled", nearly, n=4) == ""


def test_batches_of_one_class_each_are_no_imbalance() -> None:
    always = {"accuracy": 0.1, "label_top_share": 1.0, "guess_top_share": 1.0}
    one = put(Loss=lambda i: 2.0, **always, label_min=3, label_max=3)
    assert severity("class_imbalance", one) != ""
    turns = put(Loss=lambda i: 2.0, **always, label_min=lambda i: i % 4, label_max=lambda i: i % 4)
    assert severity("class_imbalance", turns) == ""


# ---- harm that does not show ----


def lingering(share: float, **more):
    return put(Loss=lambda i: 2.3 * (share + (1 - share) * math.exp(-i / 6)) + noise(i) / 20, **more)


def test_what_does_well_in_validation_wants_nothing() -> None:
    def told(right: float, **more) -> str:
        change = lingering(0.4, **more)
        logged = lambda i: {"valid_accuracy": right}  # noqa: E731
        return severity("momentum_too_high", change, header=make_header(momentum="0.999"), logged=logged)

    assert told(0.9) == "likely"
    assert told(0.98) in ("", "advice")
    swings = {"Loss": lambda i: 4.6 if i == 9 else 2.3 * math.exp(-i / 20)}
    assert severity("momentum_too_high", put(**swings), header=make_header(momentum="0.999")) == "likely"
    good = replay_history(
        put(**swings), header=make_header(momentum="0.999"), logged=lambda i: {"valid_accuracy": 0.98}
    )
    assert good.found["momentum_too_high"].severity == "advice"
    assert told(0.98, label_top_share=0.9) == "likely"  # always giving the commonest label does nearly as well


def test_harm_is_not_seen_where_validation_is_right() -> None:
    def view(right: float) -> View:
        judge = replay_history(put(**STUCK), logged=lambda i: {"valid_accuracy": right}, finished=True)
        assert judge.facts is not None
        return View(judge.history, judge.facts)

    good, poor = view(0.98), view(0.5)
    assert (good.struggles, good.lags, good.unfinished, good.wanting) == (False,) * 4
    assert (poor.struggles, poor.lags, poor.unfinished, poor.wanting) == (True,) * 4


@pytest.mark.parametrize("rate", [lambda i: 0.1 if i < 9 else 1e-9, lambda i: 0.1 * 0.9**i])
def test_a_schedule_that_left_enough_time_to_do_well(rate) -> None:
    change = lingering(0.4, LearningRate=rate)
    assert severity("schedule_too_fast", change, logged=lambda i: {"valid_accuracy": 0.7}) == "likely"
    assert severity("schedule_too_fast", change, logged=lambda i: {"valid_accuracy": 0.99}) == ""


def test_sorted_data_that_do_no_harm_in_validation_are_advice() -> None:
    sorted_ = put(target_mean=lambda i: i % 9, target_variance=0)
    logged = lambda i: {"valid_accuracy": 0.99}  # noqa: E731
    assert severity("data_not_shuffled", sorted_) == "likely"
    late = both(put(target_mean=lambda i: 4 if i < 8 else i % 9, target_variance=0))
    assert severity("data_not_shuffled", late, logged=logged) == "advice"


@pytest.mark.parametrize(("left", "told"), [(0.3, "likely"), (0.15, "advice")])
def test_a_fifth_of_real_targets_may_be_noise(left: float, told: str) -> None:
    change = put(input_rms=60, target_std=1, target_scale=1, Loss=lambda i: left + 0.7 * math.exp(-i / 3), Distance=0.1)
    assert severity("inputs_not_scaled", change, header=values_header(), finished=True) == told


def test_empty_columns_are_told_beside_less() -> None:
    empty = {"target_std": 1, "target_scale": 1, "input_zeros": 0.2, "input_constant": 0.2}
    change = put(**empty, Loss=lambda i: 0.15 + 0.8 * math.exp(-i / 3))
    assert severity("constant_feature", change, header=values_header(), n=70) == "likely"
    change = put(**empty, Loss=lambda i: 0.05 + 0.8 * math.exp(-i / 3))
    assert severity("constant_feature", change, header=values_header(), n=70) == ""


def test_inputs_that_threw_the_loss_far_up_and_it_comes_down_fast() -> None:
    def told(pace: float) -> str:
        change = put(input_rms=40, activation_first=30, Loss=lambda i: 2.5 + 9 * math.exp(-pace * i), accuracy=0.1)
        return severity("inputs_not_scaled", change, n=6)

    assert told(0.8) == "advice"
    assert told(0.0) == "likely"


def test_summed_losses_wait_for_what_long_steps_do() -> None:
    def told(loss, size: float) -> str:
        change = put(Loss=loss, UpdateSize=size, accuracy=0.1, loss_addends=32, loss_elements=32)
        return severity("loss_summed", change, static={"static_sum": 1}, n=3)

    assert told(lambda i: 74.0, 0.8) == "likely"
    assert told(lambda i: 74.0 / (1 + 2 * i), 0.8) == "advice"  # it falls: a rate that was made for it
    assert told(lambda i: 74.0, 0.2) == "advice"


@pytest.mark.parametrize(("right", "told"), [(0.6, "likely"), (0.93, "")])
def test_validation_that_is_right_is_not_overfitted(right: float, told: str) -> None:
    logged = lambda i: {"valid_loss": 2.2 + i / 400, "valid_accuracy": right}  # noqa: E731
    assert severity("overfitting", logged=logged) == told


def test_texts_leave_much_in_any_case() -> None:
    def told(*more) -> str:
        change = both(lingering(0.3, accuracy=0.7), *more)
        return severity("init_constant", change, static={"static_constant": 3}, header=fresh(), finished=True)

    assert told(of_codes) in ("", "advice")
    assert told() == "broken"
    assert told(put(label_count=320)) == "broken", "pictures of labels are learned as other labels are"


@pytest.mark.parametrize(("longest", "length", "told"), [(4.0, 40.0, "likely"), (0.1, 12.0, "advice")])
def test_losses_that_are_added_up_have_thrown_the_weights_off(longest: float, length: float, told: str) -> None:
    """Without that, what is left in the end has other reasons."""
    loss = lambda i: 4 * 2.3 * (0.3 + 0.7 * math.exp(-i / 4))  # noqa: E731
    far = {"ParamNorm": lambda i: 10 if i < 3 else length, "Distance": lambda i: 0 if i < 3 else length}
    change = put(Loss=loss, passes=4, accuracy=0.7, **far, UpdateSize=lambda i: longest if i == 1 else 0.1)
    assert severity("accumulation_not_divided", change, finished=True) == told

"""What a run of a second group of unseen programs taught: a first plateau is no low rate, what is left in the end beside a fact,
rare answers that validation has more of."""

from __future__ import annotations

import pytest

from tests.core.diagnosis.test_diagnoses import FLAT, noise, put, tried
from tests.histories import find, make_header

LONG = {"n": 60, "every": 5, "finished": True}


def severity(name: str, *args, **options) -> str:
    found = find(*args, **options)
    return found[name].severity if name in found else ""


def answers_header(optimizer: str = "RMSprop"):
    return make_header("BCELoss", optimizer)


# ---- a first plateau ----

CREEP = {"Distance": lambda i: 0.01 * i, "UpdateSize": 0.01, "HessMaxEV": float("nan"), "steps_to_go": 9000}


@pytest.mark.parametrize(
    ("optimizer", "length", "steps", "told"),
    [
        ("SGD", 0.01, 20, ""),  # steps as long as the gradient, which grows once the plateau is left
        ("SGD", 0.01, 59, "likely"),  # 295 steps: it had its time
        ("SGD", 0.001, 20, "likely"),  # short by any measure
        ("Adam", 0.01, 20, "likely"),  # as long as the rate
    ],
)
def test_a_first_plateau_of_sgd_is_no_low_rate(optimizer: str, length: float, steps: int, told: str) -> None:
    change = put(**(FLAT | CREEP | {"UpdateSize": length, "NormTest": 0.5}))
    assert severity("learning_rate_too_low", change, header=make_header(optimizer=optimizer), n=steps) == told


@pytest.mark.parametrize(("grows", "told"), [(0.4, ""), (0.0, "likely")])
def test_a_plateau_that_is_being_left_is_no_low_rate(grows: float, told: str) -> None:
    """The loss has begun to fall, and steps of SGD grow with the gradient."""
    loss = {"Loss": lambda i: 2.3 - 0.09 * i / 18 + noise(i) / 50, "accuracy": 0.12}
    change = put(**(loss | CREEP | {"UpdateSize": lambda i: 0.01 * (1 + grows * i), "NormTest": 0.5}))
    assert severity("learning_rate_too_low", change, header=make_header(optimizer="SGD"), n=20) == told


def test_samples_that_do_not_agree_are_no_low_rate() -> None:
    """At the end, in steps as long as usual ones, and gradients that are nothing but noise: nothing belongs together."""
    change = tried(1e-4, 4e-4, 1.6e-3, 6.2e-3, **(FLAT | CREEP | {"NormTest": 1.0, "steps_to_go": 500}))

    def longer(i, scalars):
        change(i, scalars)
        scalars["UpdateSize"] = 0.02 if i == 3 else 0.01

    assert severity("labels_random", longer, **LONG) == "likely"
    assert severity("learning_rate_too_low", longer, **LONG) == ""
    assert severity("labels_random", change, **LONG) == ""  # no step was as long as usual ones


# ---- what is left in the end ----


def left(level: float, **more):
    loss = {"Loss": lambda i: 2.3 * max(level, 1 - i / 12) + noise(i) / 50}
    return put(**loss, accuracy=lambda i: min(1 - level, 0.1 + i / 12), **more)


def test_softmax_twice_where_answers_are_missing_in_the_end() -> None:
    twice = {"row_sum_error": 1e-6, "output_min": 0.0, "output_max": 1.0, "label_rows": 32}
    assert severity("double_softmax", left(0.2, **twice), **LONG) == "broken"
    assert severity("double_softmax", left(0.2, **twice), n=40) == "advice"
    assert severity("double_softmax", left(0.02, **twice), **LONG) == "advice"


@pytest.mark.parametrize(
    ("level", "clipped", "long", "told"),
    [(0.4, 0.05, 15.0, "likely"), (0.1, 0.05, 15.0, ""), (0.4, 0.8, 15.0, ""), (0.4, 0.05, 5.0, "")],
)
def test_clipping_that_held_back_a_whole_run(level: float, clipped: float, long: float, told: str) -> None:
    change = left(level, GradNormClipped=clipped, UpdateSize=5e-3)
    probe = tried(0.25, 1.0, 4.0, long, loss=100.0)

    def clip(i, scalars):
        probe(i, scalars)
        change(i, scalars)

    assert severity("clipping_too_hard", clip, **LONG) == told


@pytest.mark.parametrize(("tail", "names"), [(80.0, ["input_outliers"]), (6.0, ["inputs_not_scaled"])])
def test_a_scale_is_that_of_all_samples(tail: float, names: list[str]) -> None:
    """Values of 9999 in any column make features uneven, batch by batch; a raw table leaves no sample so far from the others."""
    found = find(left(0.6, input_tail=tail, input_ratio=30.0, input_rms=15.0, activation_first=15.0), **LONG)
    assert [n for n in ("input_outliers", "inputs_not_scaled") if n in found and found[n].severity != "advice"] == names


# ---- yes or no ----


@pytest.mark.parametrize(
    ("share", "elsewhere", "told"), [(0.97, 1.0, "likely"), (0.97, 0.12, ""), (0.6, 1.5, ""), (0.97, 40.0, "")]
)
def test_an_answer_that_validation_has_more_of(share: float, elsewhere: float, told: str) -> None:
    """A guess by frequencies costs 0.13 in training; 40: a sum over samples."""
    change = put(Loss=lambda i: 0.12 + noise(i) / 100, label_top_share=share, target_mean=1 - share, output_min=0.1, output_max=0.9,
                 accuracy=0.97)  # fmt: skip
    logged = {"valid_loss": elsewhere}
    assert severity("class_imbalance", change, header=answers_header(), logged=lambda i: logged, **LONG) == told


@pytest.mark.parametrize(
    ("likeness", "header", "told"),
    [(0.999, answers_header(), "likely"), (0.99, answers_header(), ""), (0.999, make_header(), "")],
)
def test_a_column_with_one_value_for_each_answer(likeness: float, header, told: str) -> None:
    change = put(input_target=likeness, input_target_where=3)
    assert severity("target_in_inputs", change, header=header, n=12) == told

"""What the end of a run tells: what steps gained and what became of it, facts beside a loss that is left, validation."""

from __future__ import annotations

import numpy as np
import pytest

from tests.core.diagnosis.test_diagnoses import both, noise, put
from tests.core.diagnosis.test_harm import falling, severity
from tests.histories import LAYERS, find, make_header

LONG = {"n": 60, "finished": True}


def tried(gain: float, straight: float):
    """Trial steps: a whole one takes ``gain`` off the loss of its batch, one 16 times as long ``straight`` times 16 as much."""

    def change(i, scalars):
        loss = scalars["Loss"]
        parts = {"quarter": gain / 4, "whole": gain, "four": 4 * gain, "sixteen": 16 * gain * straight}
        scalars |= {"signal/probe/line": 1.0, "signal/probe/loss": loss}
        scalars |= {f"signal/probe/{name}": loss * (1 - share) for name, share in parts.items()}

    return change


def at(level: float, slope: float = 0.0, **more):
    """A loss at this share of chance, that falls by ``slope`` from the first record to the last."""
    return put(**{"Loss": lambda i: 2.3 * (level + slope * (1 - i / 60)) + noise(i) / 40, "accuracy": 0.3} | more)


SHORT = {"UpdateSize": 5e-3, "Distance": 2.0}  # a step is 0.05 % of the weights, which have moved by a fifth


def test_steps_that_could_be_many_times_longer() -> None:
    """The loss falls by 0.2 in 300 steps, as far as the gain of the steps says, and most of it is left."""
    slow = at(0.8, 0.2, **SHORT)
    assert severity("learning_rate_too_low", both(slow, tried(8e-4, 0.9)), **LONG) == "likely"
    assert severity("learning_rate_too_low", both(slow, tried(8e-4, -1.0)), **LONG) == "", "longer ones would not do"


def test_steps_that_gain_and_lose_are_not_too_short() -> None:
    """What they gain on their own batch is not seen in others: that is noise, at any rate."""
    lost = both(at(0.8, UpdateSize=0.02, Distance=2.0), tried(5e-3, 0.9))
    assert severity("learning_rate_too_low", lost, **LONG) == ""


def test_labels_of_which_a_quarter_is_wrong() -> None:
    """Such a share is an alarm only where steps help their own samples and no others."""
    wrong = falling(0.7, accuracy=0.65, label_rows=64, wrong_rank=0.45, wrong_low=0.4)
    assert severity("label_noise", wrong, **LONG) == "advice"
    assert severity("label_noise", both(wrong, tried(0.01, 0.5)), **LONG) == "likely"


def test_labels_of_others() -> None:
    """Next to nothing is learned, though each step gains much on its own samples."""
    lost = both(at(0.9, accuracy=0.21), tried(0.01, 0.5))
    lost = both(lost, put(UpdateSize=0.05))
    assert severity("labels_random", lost, **LONG) == "likely"
    assert severity("labels_random", lost, n=60) == "", "it is not over"


LEARNED = {"label_rows": 64, "label_top_share": 0.1, "wrong_rank": 0.1, "wrong_low": 0.05}


@pytest.mark.parametrize(("valid", "told"), [(0.12, "likely"), (0.5, "")])
def test_what_holds_nowhere_else(valid: float, told: str) -> None:
    """Known by heart: half of the answers are right in training, and in validation as many as by guessing."""
    change = falling(0.5, accuracy=0.6, **LEARNED)
    assert severity("labels_random", change, logged=lambda i: {"valid_accuracy": valid}, **LONG) == told
    soon = both(
        change, put(accuracy=lambda i: 0.5 if i < 10 else 1.0)
    )  # a leak, or a handful of samples: not by heart so fast
    assert severity("labels_random", soon, logged=lambda i: {"valid_accuracy": valid}, **LONG) == ""


@pytest.mark.parametrize(("valid", "told"), [(0.8, "likely"), (0.62, "")])
def test_validation_that_is_better_than_training(valid: float, told: str) -> None:
    change = falling(0.5, accuracy=0.6, **LEARNED)
    assert severity("label_noise", change, logged=lambda i: {"valid_accuracy": valid}, **LONG) == told
    assert severity("label_noise", change, logged=lambda i: {"valid_accuracy": valid}, n=30) == "", "it still learns"


def test_classes_that_training_hardly_has() -> None:
    change = falling(0.1, accuracy=0.97, label_rows=64, label_top_share=0.55, guess_top_share=0.6)
    found = find(change, logged=lambda i: {"valid_accuracy": 0.4}, **LONG)
    assert found["class_imbalance"].severity == "likely" and "labels_random" not in found
    assert severity("class_imbalance", change, logged=lambda i: {"valid_accuracy": 0.95}, **LONG) == ""


@pytest.mark.parametrize(
    ("name", "static", "signals"),
    [
        ("missing_nonlinearity", {"static_linear": 1}, {}),
        ("batchnorm_momentum", {"static_batchnorm_momentum": 1.0}, {}),
        (
            "accumulation_not_divided",
            {},
            {"passes": 4, "UpdateSize": 3.0, "Distance": 40, "ParamNorm": lambda i: 10 + 40 * (i > 3)},
        ),
        ("attention_too_sharp", {}, {"AttentionEntropy": 0.1}),
        ("init_constant", {"static_constant": 3}, {}),
        ("inputs_not_scaled", {}, {"input_rms": 12.0, "activation_first": 4.0}),
    ],
)
def test_a_fact_beside_a_loss_that_is_left(name: str, static: dict, signals: dict) -> None:
    """A fifth of chance is left in the end: with the fact that is an alarm, without it a run like any other. Where answers are
    nearly all right, the fact did no harm."""

    def run(left: float, right: float) -> str:
        factor = signals.get("passes", 1)
        fall = put(
            Loss=lambda i: factor * 2.3 * (left + (1 - left) * 0.8**i) + noise(i) / 40, accuracy=right, label_rows=64
        )
        own = {key: value for key, value in signals.items() if key.startswith("Attention")}
        extra = put(**{key: value for key, value in signals.items() if key not in own})
        change = both(both(fall, extra), lambda i, scalars: scalars.update(own))
        return severity(name, change, static=static, **LONG)

    assert run(0.2, 0.8) in ("likely", "broken")
    assert run(0.2, 0.96) in ("advice", "")
    assert run(0.05, 0.9) in ("advice", "")


def test_columns_that_are_empty() -> None:
    empty = {"input_constant": 0.2, "input_zeros": 0.2}
    assert severity("constant_feature", falling(0.3, accuracy=0.7, **empty), **LONG) == "likely"
    assert severity("constant_feature", falling(0.3, accuracy=0.7, **(empty | {"input_zeros": 0.45})), **LONG) == ""
    assert severity("constant_feature", falling(0.05, accuracy=0.97, **empty), **LONG) == ""


def test_a_training_of_a_few_steps() -> None:
    big = make_header()
    big.batch_size = 512
    falls = put(Loss=lambda i: 2.3 - 0.1 * i, NormTest=0.1)
    few = {"n": 12, "every": 2, "batch": 512, "header": big, "finished": True}
    assert severity("batch_too_large", falls, **few) == "likely"
    assert severity("batch_too_large", put(Loss=lambda i: 2.3 - 0.1 * i, NormTest=0.8), **few) == "", (
        "noise: it is not the batch"
    )


def test_no_gradient_at_all() -> None:
    gone = put(Loss=2.3, GradNorm=0.0, GradNormClipped=0.0, UpdateSize=0.0)
    assert severity("dead_units", gone) == "broken"
    assert "half_precision_underflow" in find(both(gone, put(graph_half=1.0)))
    assert "dead_units" not in find(both(gone, put(graph_half=1.0))), "that is why"


def test_a_cut_behind_tied_weights() -> None:
    header = make_header()
    header.options["fresh weights"] = "b.weight\nc.weight"

    def layers(i: int) -> dict[str, np.ndarray]:
        norms = np.full(len(LAYERS), 0.4)
        norms[2:] = np.nan
        return {"GradNorm": norms}

    found = find(falling(0.8, accuracy=0.2), header=header, layers=layers)["graph_detached"]
    assert found.severity == "broken" and found.layers == list(LAYERS[2:])
    assert "graph_detached" not in find(header=header, layers=layers), "the rest learns"


def test_tokens_that_stay_at_their_frequencies() -> None:
    """The loss is that of knowing how common each token is, and far below that of guessing among all."""
    tokens = {"label_count": 320, "token_entropy": 1.5, "classes": 10}
    change = both(put(Loss=lambda i: 1.5 + noise(i) / 100, accuracy=0.2, **tokens), tried(0.01, 0.5))
    found = find(both(change, put(UpdateSize=0.05)), **LONG)
    assert {"labels_random", "not_learning"} & set(found)
    below = both(put(Loss=lambda i: 1.2 + noise(i) / 100, accuracy=0.5, **tokens), tried(0.01, 0.5))
    assert not {"labels_random", "not_learning"} & set(find(below, **LONG))


def test_steps_that_never_became_shorter() -> None:
    """In the end a step is still two hundredths of the weights, which have become twice as long."""
    long = {"UpdateSize": 0.5, "ParamNorm": lambda i: 10 + 12 * i / 60, "Distance": lambda i: 25 * i / 60}
    assert severity("learning_rate_too_high", falling(0.25, accuracy=0.7, **long), **LONG) == "likely"
    assert severity("learning_rate_too_high", falling(0.05, accuracy=0.7, **long), **LONG) == ""


def test_weights_that_were_thrown_off() -> None:
    """Steps of an eighth of the weights at first; then a schedule made them short, and a quarter of the loss is left."""
    off = {
        "UpdateSize": lambda i: 1.3 if i < 4 else 0.05,
        "ParamNorm": lambda i: 10 + 35 * min(1, i / 10),
        "Distance": lambda i: 44 * min(1, i / 10),
    }
    assert severity("learning_rate_too_high", falling(0.25, accuracy=0.7, **off), **LONG) == "likely"
    assert severity("learning_rate_too_high", falling(0.05, accuracy=0.7, **off), **LONG) == ""


def test_weights_that_decay_wears_down() -> None:
    header = make_header("CrossEntropyLoss", "SGD", weight_decay="0.05")
    shrink = {"ParamNorm": lambda i: 10 - 5 * min(1, i / 30), "GradNorm": 1.0, "GradNormClipped": 1.0}
    change = falling(0.25, accuracy=0.7, **shrink)
    assert severity("weight_decay_too_high", change, header=header, **LONG) == "likely"
    assert severity("weight_decay_too_high", falling(0.05, accuracy=0.7, **shrink), header=header, **LONG) == ""


@pytest.mark.parametrize(("left", "told"), [(0.5, "likely"), (0.1, "advice")])
def test_a_loss_that_nobody_knows(left: float, told: str) -> None:
    """What is left is counted from where it began."""
    header = make_header("Pinball")
    change = put(Loss=lambda i: 3 * (left + (1 - left) * 0.8**i) + noise(i) / 100)
    assert severity("missing_nonlinearity", change, header=header, static={"static_linear": 1}, **LONG) == told


VALUES = {"target_std": 1.0, "target_scale": 0.7, "target_mean": 0.0}


def left(level: float):
    """A squared error that ends at this share of the variance of its targets."""
    return put(Loss=lambda i: level + (1 - level) * np.exp(-i / 5) + noise(i) / 40, Distance=5.0, **VALUES)


@pytest.mark.parametrize(
    ("level", "valid", "told"), [(0.5, 0.5, "advice"), (0.5, 0.95, ""), (0.1, 0.5, ""), (0.5, 0.1, "")]
)
def test_targets_of_training_that_are_worse_than_those_of_validation(level: float, valid: float, told: str) -> None:
    """Half of the loss is left, and a quarter in validation: not where next to nothing is left, nor from another scale."""
    change, header = left(level), make_header("MSELoss", "Adam")

    def logged(i):
        own = level + (1 - level) * np.exp(-i / 5)
        return {"valid_loss": own * (valid if valid < 0.2 else 1 - (1 - valid) * min(1.0, i / 20))}

    assert severity("label_noise", change, logged=logged, header=header, **LONG) == told
    dropped = {"static": {"static_dropout": 0.2}}
    assert severity("label_noise", change, logged=logged, header=header, **LONG, **dropped) == "", "dropout does it too"


@pytest.mark.parametrize(("right", "valid", "told"), [(0.6, 0.95, "likely"), (0.75, 0.95, "advice"), (0.9, 0.95, "")])
def test_yes_or_no_that_is_right_more_often_in_validation(right: float, valid: float, told: str) -> None:
    header = make_header("BCEWithLogitsLoss")
    change = put(Loss=lambda i: 0.6 + noise(i) / 40, accuracy=right, label_top_share=0.55)
    assert severity("label_noise", change, logged=lambda i: {"valid_accuracy": valid}, header=header, **LONG) == told


def test_columns_that_hold_nothing_or_one_value() -> None:
    wide = falling(0.5, accuracy=0.5, input_constant=0.8, input_zeros=0.6)
    assert severity("constant_feature", wide, **LONG) == "likely"
    picture = falling(0.5, accuracy=0.5, input_constant=0.3, input_zeros=0.5)
    assert severity("constant_feature", picture, **LONG) == "", "zeros are elsewhere too"


def test_what_is_left_when_nothing_else_explains_it() -> None:
    """A run that is over, at chance, with weights that have moved and steps of the right size."""
    lost = at(0.95, accuracy=0.1, UpdateSize=0.02, Distance=5.0)
    assert severity("labels_random", lost, **LONG) == "likely"
    assert severity("labels_random", lost, n=60) == "", "it is not over"
    assert severity("labels_random", both(lost, put(dead=0.8)), **LONG) == "", "its units are dead"


@pytest.mark.parametrize(("likeness", "told"), [(0.0, "likely"), (0.6, "")])
def test_pictures_and_targets_of_others(likeness: float, told: str) -> None:
    """What all targets have in common is learned, so that the loss is below chance."""
    header = make_header("MSELoss", "Adam")
    apart = put(
        Loss=lambda i: 0.85 + noise(i) / 40, pair_likeness=likeness, target_like_input=1, Distance=5.0, **VALUES
    )
    assert severity("labels_random", both(apart, put(UpdateSize=0.02)), header=header, **LONG) == told


def test_training_that_gains_where_validation_does_not() -> None:
    header = make_header("MSELoss", "Adam")
    heart = put(Loss=lambda i: 1.02 - 0.14 * i / 60 + noise(i) / 40, Distance=5.0, UpdateSize=0.02, **VALUES)
    heart = both(heart, put(loss_std=0.05))
    told = severity("labels_random", heart, logged=lambda i: {"valid_loss": 0.97}, header=header, **LONG)
    assert told == "likely"
    better = severity("labels_random", heart, logged=lambda i: {"valid_loss": 1 - 0.15 * i / 60}, header=header, **LONG)
    assert better == ""

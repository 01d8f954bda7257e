"""Facts that no right program shows are told though the loss falls, and what is left in the end tells the rest."""

from __future__ import annotations

import numpy as np
import pytest

from tests.core.diagnosis.test_diagnoses import put
from tests.histories import LAYERS, find, make_header

VALUES = {"target_std": 1.0, "classes": float("nan"), "target_min": -2, "target_max": 2, "accuracy": float("nan")}


def severity(name: str, change=None, **options) -> str:
    found = find(change, **options)
    return found[name].severity if name in found else ""


def falls(i: int) -> float:
    """A twentieth of chance is left."""
    return 0.05 + 0.95 * 0.8**i


def stand_still(count: int):
    moves = np.array([0.0] * count + [0.04] * (len(LAYERS) - count))
    return lambda i: {"UpdateSize": moves}


@pytest.mark.parametrize(("count", "foreign", "told"), [(4, 0, "broken"), (2, 0, "advice"), (2, 3, "broken")])
def test_layers_in_no_optimizer(count, foreign, told) -> None:
    """Two of three matrices, or one in the place of which the optimizer holds others, though the rest learns well."""
    header = make_header()
    header.options |= {"not optimized": "\n".join(LAYERS[:count]), "fresh weights": "\n".join(LAYERS[::2])}
    header.layers[4].size = 900  # most of the weights are in the layer that learns
    options = {"header": header, "static": {"static_unoptimized": count, "static_foreign": foreign}, "n": 60}
    change = put(Loss=lambda i: 2.3 * falls(i), accuracy=0.95)
    assert severity("parameters_not_optimized", change, layers=stand_still(count), **options) == told


@pytest.mark.parametrize(("constant", "told"), [(4, "broken"), (3, "advice")])
def test_all_weights_equal(constant, told) -> None:
    static = {"static_constant": constant, "static_matrices": 4}
    found = severity("init_constant", put(Loss=lambda i: 2.3 * falls(i)), static=static, n=60)
    assert found == told


@pytest.mark.parametrize(("untrained", "left", "told"), [(2, 0.8, "likely"), (2, 0.0, "advice"), (0, 0.0, "advice")])
def test_statistics_that_nobody_has_trained(untrained, left, told) -> None:
    static = {"static_mode_dependent": 2, "static_batchnorms": 2, "static_batchnorm_untrained": untrained}
    change = put(Loss=lambda i: 2.3 * (left + (1 - left) * falls(i)), training=0, eval_batchnorm=2)
    assert severity("eval_mode", change, static=static) == told


@pytest.mark.parametrize(("share", "fall", "told"), [(2.5, 0.7, "likely"), (0.9, 0.7, ""), (2.5, 0.95, "")])
def test_decay_that_pulls_harder_in_the_end(share, fall, told) -> None:
    """The gradient is 1, the weights began with a length of 10."""
    change = put(**VALUES, Loss=falls, ParamNorm=lambda i: 10 * (1 - (1 - fall) * i / 59), Distance=5)
    header = make_header("MSELoss", weight_decay=str(share / (10 * fall)))
    assert severity("weight_decay_too_high", change, header=header, n=60, finished=True) == told


@pytest.mark.parametrize(("step", "fresh", "told"), [(0.01, True, "likely"), (0.04, True, ""), (0.01, False, "")])
def test_no_step_of_the_whole_run_was_long(step, fresh, told) -> None:
    """Steps of a thousandth of the weights; ones 16 times as long would have gained 12 times as much."""

    def tried(i, scalars):
        put(**VALUES, Loss=lambda i: 0.1 + 0.9 * 0.9**i, UpdateSize=step, Distance=0.3)(i, scalars)
        loss = scalars["Loss"]
        if i % 8 == 0:
            gains = {"quarter": 0.0025, "whole": 0.01, "four": 0.04, "sixteen": 0.12}
            scalars |= {"signal/probe/line": 1.0, "signal/probe/loss": loss}
            scalars.update({f"signal/probe/{name}": loss * (1 - gain) for name, gain in gains.items()})

    header = make_header("MSELoss")
    header.options |= {"fresh weights": "\n".join(LAYERS[::2])} if fresh else {}
    assert severity("learning_rate_too_low", tried, header=header, n=60, finished=True) == told


@pytest.mark.parametrize(("loss", "told"), [(0.5, True), (0.05, False)])
def test_triplets_that_are_all_alike_cost_the_margin(loss, told) -> None:
    change = put(**VALUES, Loss=loss, NormTest=3.0, target_mean=float("nan"))
    found = find(change, header=make_header("TripletMarginLoss"), static={"static_margin": 0.5}, n=60, finished=True)
    assert ("labels_random" in found or "not_learning" in found) == told


@pytest.mark.parametrize(("scale", "told"), [(3000, "likely"), (30, "")])
def test_counts_of_thousands_are_far_from_where_a_network_begins(scale, told) -> None:
    change = put(Loss=5.0, target_scale=scale, output_rms=0.3, likelihood_chance=1.0, likelihood_floor=0.0)
    assert severity("targets_not_scaled", change, header=make_header("PoissonNLLLoss")) == told


@pytest.mark.parametrize(("jump", "told"), [(0.9, "likely"), (0.0, "advice")])
def test_inputs_in_an_order(jump, told) -> None:
    """A distortion of whole batches shifts them too; where the loss does not jump, it does no harm."""
    wave = lambda i: 1.5 + jump * (1 if i * 7 % 5 > 2 else -1)  # noqa: E731
    change = put(Loss=wave, input_shift=12, target_mean=float("nan"), accuracy=0.4, hits=0)
    assert severity("data_not_shuffled", change, n=60) == told
    assert severity("data_not_shuffled", put(input_shift=1.2), n=60) == ""


def test_values_and_inputs_in_an_order() -> None:
    order = {"target_mean": lambda i: float(i % 5), "target_variance": 2.0, "target_rows": 32, "samples": 32}
    change = put(**VALUES | order, Loss=falls)
    options = {"header": make_header("MSELoss"), "n": 60}
    assert severity("data_not_shuffled", change, **options) == ""  # a network may make its targets itself
    assert severity("data_not_shuffled", put(**VALUES | order, Loss=falls, input_shift=9), **options) == "likely"

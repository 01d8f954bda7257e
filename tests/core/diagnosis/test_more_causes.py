"""Faults whose consequence is one of several: what decides, and the neighbours that are no fault."""

from __future__ import annotations

import numpy as np
import pytest

from cockpit_core.foundation.records import QuantityInfo
from tests.core.diagnosis.test_diagnoses import FLAT, STUCK, find, make_header, noise, put, values_header


@pytest.mark.parametrize(
    ("low", "high", "lowest", "highest", "severity"),
    [
        (-0.985, 0.985, -2.9, 2.7, "likely"),  # tanh
        (0.015, 0.985, -2.9, 2.7, "likely"),  # sigmoid
        (0.0, 3.0, -2.9, 2.7, "likely"),  # ReLU
        (0.0, 3.0, 0.0, 2.7, ""),  # targets that are never negative
        (-0.9, 0.9, -2.9, 2.7, ""),  # not at a bound: a network that is not sure
        (-0.99, 1.05, -2.9, 2.7, ""),  # beyond it
    ],
)
def test_outputs_that_cannot_reach_their_targets(low, high, lowest, highest, severity) -> None:
    change = put(
        Loss=lambda i: 0.5 + noise(i) / 10, target_std=1, target_scale=0.7, target_min=lowest, target_max=highest,
        output_min=lambda i: low + (0.1 * noise(i) if low else 0.0), output_max=lambda i: high - 0.1 * noise(2 * i),
    )  # fmt: skip
    found = find(change, header=values_header(), n=60)
    assert (found["output_activation"].severity if "output_activation" in found else "") == severity


def test_scores_of_a_tanh_that_are_right_are_no_alarm() -> None:
    found = find(put(accuracy=0.96, output_min=-0.99, output_max=0.99))
    assert [finding.name for finding in found.values() if finding.severity != "advice"] == []


@pytest.mark.parametrize("over", ["row", "column"])
def test_a_softmax_is_no_sigmoid(over: str) -> None:
    bounded = put(**STUCK, output_min=0.001, output_max=0.999, **{f"{over}_sum_error": 1e-7})
    assert "output_activation" not in find(bounded, n=60)
    assert "output_activation" in find(put(**STUCK, output_min=0.001, output_max=0.999), n=60)


@pytest.mark.parametrize("asked", [False, True])
def test_steps_that_point_up_the_gradient_maximise_the_loss(asked: bool) -> None:
    header = make_header("CrossEntropyLoss", "Adam", maximize=str(asked))
    rises = put(Loss=lambda i: 2.3 + 0.2 * i, accuracy=0.1)

    def climb(i, scalars):
        rises(i, scalars)
        scalars["UpdateCosine"] = -0.4

    found = find(climb, header=header)
    assert found["loss_sign"].severity == "broken"
    assert ("maximize=True" in found["loss_sign"].remedy) == asked
    assert "learning_rate_too_high" not in found


def test_a_momentum_that_swings_back_is_no_wrong_sign() -> None:
    def swing(i, scalars):
        scalars["UpdateCosine"] = -0.3 if i % 2 else 0.2

    assert "loss_sign" not in find(swing)
    assert "loss_sign" not in find(lambda i, scalars: scalars.update({"UpdateCosine": -0.3}))  # and the loss falls


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"LearningRate": 0}, "learning rate is 0"),
        ({"GradNormClipped": 0}, "gone when the optimizer"),
        ({}, "rounding"),
    ],
)
def test_why_nothing_moves(change: dict, says: str) -> None:
    found = find(put(**(STUCK | {"UpdateSize": 0, "Distance": 0} | change)))
    assert list(found) == ["nothing_moves"]
    assert says in found["nothing_moves"].text


def test_a_rate_that_is_zero_at_first_is_no_standstill() -> None:
    assert "nothing_moves" not in find(
        put(Distance=lambda i: max(0, i - 2), LearningRate=lambda i: 0 if i < 3 else 0.1)
    )


def test_inputs_that_biases_drown() -> None:
    assert find(put(**STUCK, input_rms=5e-6))["inputs_not_scaled"].severity == "likely"
    assert "inputs_not_scaled" not in find(put(input_rms=5e-6))  # learned all the same: a normalisation comes first
    assert "inputs_not_scaled" not in find(put(**STUCK, input_rms=0.02))


def test_inputs_that_are_all_the_same() -> None:
    found = find(put(**FLAT, input_constant=1.0, input_zeros=1.0, batch_checksum=0.5), n=60)
    assert found["constant_feature"].severity == "likely"
    assert "batch_repeated" not in found


def test_a_graph_that_is_cut_behind_the_network() -> None:
    def cut(i, scalars):
        put(**FLAT, GradNormClipped=0, Distance=0)(i, scalars)
        for name in [
            name
            for name in scalars
            if name.startswith(("GradNorm", "UpdateSize", "NormTest")) and name != "GradNormClipped"
        ]:
            del scalars[name]

    header = make_header()
    header.quantities = [QuantityInfo("GradNorm")]
    found = find(cut, header=header)
    assert found["graph_detached"].severity == "broken"
    assert "between the network and the loss" in found["graph_detached"].text
    header.quantities = []  # nobody asked for the gradient
    assert "graph_detached" not in find(cut, header=header)


BINARY = {"target_std": 0.2, "classes": float("nan"), "label_top_share": 0.98, "accuracy": 0.98}


@pytest.mark.parametrize(
    ("highest", "share", "finished", "severity"),
    [(-2, 0.98, True, "likely"), (-2, 0.98, False, "advice"), (-2, 0.92, True, "advice"), (0.5, 0.98, True, "")],
)
def test_a_rare_answer_that_is_never_given(highest, share, finished, severity) -> None:
    """Pixels of small objects: the loss falls to that of a picture without any."""
    change = put(**(BINARY | {"label_top_share": share, "output_min": -9, "output_max": highest}))
    found = find(change, header=make_header("BCEWithLogitsLoss"), finished=finished)
    assert (found["class_imbalance"].severity if "class_imbalance" in found else "") == severity


@pytest.mark.parametrize(
    ("low", "high", "told"), [(1e-4, 0.999, True), (1e-4, 0.6, False), (-0.2, 0.999, False), (1e-4, 1.3, False)]
)
def test_scores_that_fill_the_range_of_a_sigmoid(low: float, high: float, told: bool) -> None:
    """A picture has so many outputs that they do not begin at a half: they end at both bounds and never beyond."""
    change = put(output_min=lambda i: 0.06 if i < 3 else low, output_max=lambda i: 0.74 if i < 3 else high)
    assert ("double_softmax" in find(change, header=make_header("BCEWithLogitsLoss"))) == told


def test_decay_is_not_blamed_for_what_clipping_leaves_of_the_gradient() -> None:
    clipped = put(**FLAT, GradNormClipped=1e-3, UpdateSize=0.1, ParamNorm=lambda i: 10 * 0.9**i)
    found = find(clipped, header=make_header(weight_decay="0.05"))
    assert next(iter(found)) == "clipping_too_hard"
    assert "weight_decay_too_high" not in found


@pytest.mark.parametrize(("noisy", "told"), [(1.2, False), (0.3, True)])
def test_weights_shrink_also_where_samples_do_not_agree(noisy: float, told: bool) -> None:
    change = put(**FLAT, NormTest=noisy, ParamNorm=lambda i: 4 + 6 * 0.9**i, GradNormClipped=1.0)
    assert ("weight_decay_too_high" in find(change, header=make_header(weight_decay="0.07"))) == told


def test_a_term_of_the_loss_is_measured_by_its_own_chance() -> None:
    """Three times a dice loss beside a cross-entropy: the first loss is far above a guess, and nothing is wrong with that."""
    change = put(Loss=lambda i: 9.0 - 0.05 * i, loss_term=lambda i: 2.3 * 0.95**i)
    assert "init_too_large" in find(put(Loss=lambda i: 9.0 - 0.05 * i))
    assert "init_too_large" not in find(change)


def test_the_samples_of_a_batch_are_those_of_the_model() -> None:
    """A loss may get the places of a sample one by one, as so many more."""
    found = find(put(batch_checksum=0.5, samples=48), batch=480)
    assert found["batch_repeated"].severity == "likely"
    assert "the same 48 samples" in found["batch_repeated"].text


def test_two_factors_that_begin_with_zeros() -> None:
    """Tables of a recommender: biases learn, and the loss falls; the product of the tables never gets anywhere."""
    header = make_header()
    header.options["constant weights"] = "a.weight\nb.weight"
    gradients = {"GradNorm": np.array([0, 0.4, 0, 0.4, 0.4, 0.4]), "ParamNorm": np.array([0, 1, 0, 1, 1, 1])}
    options = {"header": header, "layers": lambda i: gradients}
    found = find(static={"static_constant": 2}, **options)["init_constant"]
    assert (found.severity, found.layers) == ("broken", ["a.weight", "b.weight"])
    assert "init_constant" not in find(static={"static_constant": 2}, header=header)  # they get one


def test_one_of_several_calls_may_always_be_the_same() -> None:
    """A differential equation: points that change, and the start, which does not."""
    assert "batch_repeated" in find(put(batch_checksum=0.5))
    assert "batch_repeated" not in find(put(batch_checksum=0.5, calls=2))
    assert "batch_repeated" in find(put(batch_checksum=0.5, calls=4, passes=4))  # accumulation


def test_units_that_hardly_differ_in_a_deep_network_of_sigmoids_are_not_dead() -> None:
    """Twelve layers: what reaches the last one is the same for every sample, but for rounding; every tensor has a gradient."""
    sizes = np.array([1e-12, 1e-12, 1e-7, 1e-7, 0.4, 0.4])
    options = {"layers": lambda i: {"GradNorm": sizes, "ParamNorm": np.full(6, 1.8)}}
    found = find(put(**STUCK, dead=0.9), **options)
    assert next(iter(found)) == "vanishing_gradients"
    assert "dead_units" not in found
    silent = {"layers": lambda i: {"GradNorm": sizes * (sizes > 0.1), "ParamNorm": np.full(6, 1.8)}}
    assert "dead_units" in find(put(**STUCK, dead=1.0), **silent)


@pytest.mark.parametrize(("module", "words"), [("relu2", "units of module relu2"), ("b", "units in front of module b")])
def test_units_are_told_by_where_they_stand(module: str, words: str) -> None:
    """Without modules for activations, inputs of layers are looked at."""
    header = make_header()
    header.options["activations"] = f"a\n{module}"
    assert words in find(put(**STUCK, dead=1.0), header=header)["dead_units"].text

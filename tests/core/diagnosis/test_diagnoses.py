"""Each diagnosis on a made-up run that is healthy but for what it looks for; and none of them on a healthy one."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from cockpit_core.diagnoses import all_diagnoses
from cockpit_core.diagnosis.limits import LIMITS
from tests.histories import LAYERS, find, make_header

ROOT = Path(__file__).resolve().parents[3]


def put(**values):
    """Set columns at every tracked step; a function of the step's number is asked."""

    def change(i, scalars):
        for name, value in values.items():
            key = name if name in scalars and not name.startswith("signal") else f"signal/{name}"
            key = name if name in ("Loss", "GradNorm", "GradNormClipped", "UpdateSize", "ParamNorm", "Distance", "NormTest",
                                   "LearningRate", "HessMaxEV", "Alpha") else key  # fmt: skip
            scalars[key] = float(value(i) if callable(value) else value)

    return change


def both(*changes):
    def change(i, scalars):
        for each in changes:
            each(i, scalars)

    return change


def noise(i: int) -> float:
    return 0.1 * math.sin(7.7 * i)


STUCK = {"Loss": lambda i: 2.31 + noise(i), "accuracy": 0.1, "label_top_share": 0.2, "steps_to_go": 400}
SLOW = {"Loss": lambda i: 2.3 * (1 - i / 200) + noise(i) / 10, "accuracy": lambda i: 0.1 + i / 80}
FLAT = {"Loss": lambda i: 2.31 + noise(i) / 10, "accuracy": 0.1}


def values_header(**more):
    return make_header("MSELoss", "Adam", **more)


def with_fresh():
    """All weights are as torch makes them when the run begins."""
    header = make_header()
    header.options["fresh weights"] = "\n".join(name for name in LAYERS if "weight" in name)
    return header


def vectors(**by_name):
    return lambda i: {name: np.array(vector, dtype=float) for name, vector in by_name.items()}


def case(change=None, **more):
    return {"change": change, **more}


CASES = {
    "learning_rate_too_high": case(change=put(Loss=lambda i: 2.3 if i < 3 else 90 + i, accuracy=0.1, UpdateSize=8.0)),
    "learning_rate_too_low": case(
        change=put(**FLAT, steps_to_go=30_000, UpdateSize=1e-4, Distance=0.01, HessMaxEV=0.01)
    ),
    "schedule_too_fast": case(
        change=put(LearningRate=lambda i: 0.1 * 0.9**i, Loss=lambda i: 2.3 - 0.8 * (1 - 0.9**i), accuracy=0.4)
    ),
    "clipping_too_hard": case(change=put(**FLAT, GradNormClipped=1e-3, UpdateSize=1e-4, Distance=0.01)),
    "weight_decay_too_high": case(
        change=put(
            Loss=lambda i: 2.2 + noise(i), accuracy=0.15, ParamNorm=lambda i: 10 * 0.95**i + 0.5, GradNormClipped=0.3
        ),
        header=make_header(weight_decay="0.3"),
    ),
    "batch_too_small": case(change=put(Loss=lambda i: 1.9 + noise(i), NormTest=2.0, label_count=2), batch=2),
    "momentum_too_high": case(change=put(Loss=lambda i: 2.0 + noise(i)), header=make_header(momentum="0.999"), n=30),
    "gradients_not_zeroed": case(change=put(leftover=1, GradNormClipped=3.0)),
    "parameters_not_optimized": case(
        static={"static_unoptimized": 2},
        layers=vectors(UpdateSize=[0, 0.1, 0, 0.1, 0.1, 0.1], GradNorm=[3, 0.4, 0.4, 0.4, 0.4, 0.4]),
        header=with_fresh(),
    ),
    "graph_detached": case(change=put(ungraded_prefix=4, ungraded_none=4, ungraded_where=3), header=with_fresh()),
    "batch_repeated": case(change=put(batch_checksum=0.5)),
    "data_not_shuffled": case(change=put(target_mean=lambda i: i % 10, target_variance=0.1)),
    "inputs_not_scaled": case(
        change=put(input_rms=140, activation_first=60, Loss=lambda i: 9 + noise(i), accuracy=0.1)
    ),
    "input_outliers": case(change=put(**STUCK, input_tail=lambda i: 40 if i % 3 == 0 else 1.4)),
    "targets_not_scaled": case(
        change=put(target_scale=3000, target_std=1000, output_rms=0.1, Loss=lambda i: 9e6 + i),
        header=values_header(),
    ),
    "labels_random": case(change=put(Loss=lambda i: 2.31 + noise(i), accuracy=0.1, Distance=5.0, NormTest=1.5)),
    "label_noise": case(
        change=put(
            accuracy=0.7, Loss=lambda i: 2.3 - 0.9 * min(1, i / 20), label_rows=32, wrong_rank=0.48, wrong_low=0.5
        )
    ),
    "loss_sign": case(change=put(Loss=lambda i: -2.3 - i)),
    "loss_summed": case(static={"static_sum": 1}, change=put(Loss=lambda i: 70 - i, HessMaxEV=100)),
    "double_softmax": case(change=put(row_sum_error=1e-7, output_min=0, output_max=1)),
    "softmax_over_batch": case(change=put(column_sum_error=1e-7, output_min=0, output_max=1)),
    "samples_mixed": case(change=put(**STUCK, **{"probe/half": 1, "probe/mixed": 0.3}), n=100),
    "loss_broadcast": case(
        change=put(broadcast=32, target_scale=0.6, target_std=1, Loss=lambda i: 1 + noise(i)), header=values_header()
    ),
    "dead_units": case(change=put(**STUCK, dead=1.0)),
    "init_constant": case(static={"static_constant": 3}, change=put(**STUCK)),
    "init_too_large": case(change=put(Loss=lambda i: 20 * math.exp(-i) + 1)),
    "init_too_small": case(
        change=put(**STUCK, output_spread=1e-5, activation_last=1e-6), layers=vectors(ParamNorm=[0.05] * 6)
    ),
    "vanishing_gradients": case(change=put(**STUCK), layers=vectors(GradNorm=[1e-6, 1e-6, 1e-3, 1e-3, 1, 1])),
    "dropout_too_high": case(static={"static_dropout": 0.97}, change=put(Loss=lambda i: 2.0 + noise(i), accuracy=0.2)),
    "eval_mode": case(static={"static_mode_dependent": 2}, change=put(**STUCK, training=0, eval_batchnorm=2)),
    "not_finite": case(change=put(Loss=lambda i: math.nan if i > 20 else 1.0)),
    "not_learning": case(change=put(**STUCK, Distance=0.5, NormTest=0.5), n=60),
    "saturated_units": case(change=put(**STUCK, saturated=0.97, saturated_where=0)),
    "accumulation_not_divided": case(change=put(passes=8, Loss=lambda i: 8 * (2.3 + noise(i)), accuracy=0.1)),
    "adam_eps_too_large": case(
        change=put(**STUCK, UpdateSize=1e-3),
        header=make_header("CrossEntropyLoss", "Adam"),
    ),
    "targets_not_shifted": case(change=put(target_is_input=1.0)),
    "class_imbalance": case(change=put(label_top_share=0.96, guess_top_share=1.0, accuracy=0.96)),
    "labels_off_by_one": case(change=put(label_min=1)),
    "constant_feature": case(change=put(input_constant=0.7)),
    "missing_nonlinearity": case(static={"static_linear_pairs": 1}),
    "batchnorm_few_samples": case(static={"static_batchnorms": 3}, change=put(Loss=lambda i: 1.9 + noise(i)), batch=2),
    "batchnorm_momentum": case(static={"static_batchnorm_momentum": 1.0}),
    "batch_too_large": case(change=put(NormTest=0.05), batch=4096),
    "clipped_before_unscaled": case(change=put(loss_scale=65536, GradNormClipped=1e-5)),
    "weights_not_tied": case(static={"static_copies": 2}),
    "schedule_before_step": case(static={"static_rate": 0.2, "static_scheduled": 1}),
    "half_precision_underflow": case(
        change=put(output_half=1), layers=vectors(GradNorm=[0, 0, 0.4, 0.4, 0.4, 0.4]), n=20
    ),
    "target_in_inputs": case(change=put(input_target=1.0, input_target_where=3)),
    "attention_too_sharp": case(
        change=both(put(**STUCK), lambda i, scalars: scalars.update({"AttentionEntropy": 0.05})), n=30
    ),
    "overfitting": case(logged=lambda i: {"valid_loss": 2.2 + i / 100}),
    "output_activation": case(
        change=put(Loss=lambda i: 1.2 + noise(i), accuracy=0.5, output_min=0, output_max=lambda i: 4 + noise(i)), n=60
    ),
    "nothing_moves": case(change=put(**STUCK, UpdateSize=0, Distance=0, GradNormClipped=0)),
    "optimizer_holds_others": case(static={"static_foreign": 2, "static_unoptimized": 2}),
}
CASES["adam_eps_too_large"]["header"].optimizers[0].groups[0]["eps"] = "0.1"
ADVICE = {
    "label_noise", "constant_feature", "missing_nonlinearity", "batchnorm_momentum",
    "batch_too_large", "optimizer_holds_others", "weights_not_tied", "schedule_before_step",
}  # fmt: skip


def test_a_healthy_run_has_no_finding() -> None:
    assert find() == {}
    assert find(header=make_header("CrossEntropyLoss", "AdamW")) == {}


@pytest.mark.parametrize("name", sorted(CASES))
def test_it_is_found(name: str) -> None:
    case = dict(CASES[name])
    found = find(case.pop("change", None), **case)
    explained = {other for finding in found.values() for other in finding.explains}
    assert name in found or name in explained, f"found {list(found)}"
    if name in found:
        assert (found[name].severity == "advice") == (name in ADVICE)
        assert found[name].text.endswith(".")
        assert found[name].remedy.endswith(".")
        assert found[name].evidence
        assert 0 < found[name].confidence < 1


# The same facts in a run that learns as well as any other: true, and no harm.
HARMLESS = {
    "parameters_not_optimized, few of them": case(
        static={"static_unoptimized": 1},
        layers=vectors(UpdateSize=[0, 0.1, 0.1, 0.1, 0.1, 0.1], GradNorm=[3, 0.4, 0.4, 0.4, 0.4, 0.4]),
        header=with_fresh(),
    ),
    "parameters_not_optimized": case(  # trained before
        static={"static_unoptimized": 1},
        layers=vectors(
            UpdateSize=[0, 0.1, 0.1, 0.1, 0.1, 0.1], GradNorm=[3, 0.4, 0.4, 0.4, 0.4, 0.4]
        ),
    ),
    "graph_detached": case(
        change=put(ungraded_prefix=4, ungraded_none=4, ungraded_where=3)
    ),
    "eval_mode": case(static={"static_mode_dependent": 2}, change=put(training=0, eval_batchnorm=2)),
    "momentum_too_high": case(header=make_header(momentum="0.999")),
    "inputs_not_scaled": case(change=put(input_rms=16)),
    "input_outliers": case(change=put(input_tail=lambda i: 40 if i % 3 == 0 else 1.4)),
    "init_too_large": case(
        change=lambda i, scalars: scalars.update({"Loss": scalars["Loss"] + (9 if i == 0 else 0)}),
        layers=vectors(ParamNorm=[3.1] * 6),
    ),
    "codes for embeddings": case(change=put(**SLOW, input_rms=16), n=12),
    "accumulation_not_divided": case(change=lambda i, scalars: scalars.update(
        {"signal/passes": 8.0, "Loss": 8 * scalars["Loss"]})),
    "weight_decay_too_high": case(
        change=put(ParamNorm=lambda i: 10 * 0.95**i + 3, GradNormClipped=1.0), header=make_header(weight_decay="0.06")
    ),
    "init_too_small": case(change=put(output_spread=1e-5), layers=vectors(ParamNorm=[0.05] * 6)),
    "schedule_too_fast": case(change=put(LearningRate=lambda i: 0.1 * 0.9**i)),
    "batchnorm_few_samples": case(static={"static_batchnorms": 3}, batch=2),
    "constant_feature": case(change=put(input_constant=0.7)),
    "input_outliers, seldom, while all is slow to begin": case(
        change=put(**STUCK, input_tail=lambda i: 60 if i % 4 == 0 else 1.4), n=9
    ),
    "overfitting, surer of mistakes and right more often": case(
        logged=lambda i: {"valid_loss": 2.2 + i / 100, "valid_accuracy": 0.2 + i / 60}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(HARMLESS))
def test_a_fact_without_harm_is_no_alarm(name: str) -> None:
    case = dict(HARMLESS[name])
    assert [f.name for f in find(case.pop("change", None), **case).values() if f.severity != "advice"] == []


def tried(quarter, whole, four, sixteen, loss=2.3, **more):
    """A probe along the line at every tracked step from the third on: what trial steps take off the loss of their batch."""

    def change(i, scalars):
        put(**more)(i, scalars)
        if i >= 2:
            taken = {"quarter": quarter, "whole": whole, "four": four, "sixteen": sixteen}
            scalars.update({f"signal/probe/{key}": loss - value for key, value in taken.items()})
            scalars.update({"signal/probe/line": 1.0, "signal/probe/loss": loss})

    return change


SILENT = {"steps_to_go": 150, "HessMaxEV": 0.5, "UpdateSize": 0.04, "Distance": 0.05}
PROBED = {  # what only a probe gives away
    "learning_rate_too_low": tried(2e-4, 8e-4, 3.2e-3, 1.25e-2, **(FLAT | SILENT | {"NormTest": 0.5})),
    "learning_rate_too_high": tried(0.05, 0.01, -0.5, -9.0, **(STUCK | SILENT | {"Distance": 8.0, "UpdateSize": 0.1})),
    "labels_random": tried(0.005, 0.02, 0.07, 0.2, **(FLAT | SILENT | {"NormTest": math.nan, "Distance": 0.5})),
    "clipping_too_hard": tried(
        2e-4, 8e-4, 3.2e-3, 1.25e-2, **(FLAT | SILENT | {"GradNormClipped": 0.1, "UpdateSize": 0.01})
    ),
}


@pytest.mark.parametrize("name", sorted(PROBED))
def test_a_probe_decides(name: str) -> None:
    lengths = {"labels_random": 130, "learning_rate_too_low": 55}  # so long may a first plateau be
    found = find(PROBED[name], n=lengths.get(name, 40))
    alarms = [finding.name for finding in found.values() if finding.severity != "advice"]
    assert alarms == [name]


def test_the_first_plateau_of_a_deep_network_is_no_small_learning_rate() -> None:
    """Six layers of tanh: 0.03 % a step for 60 steps, and then it goes. A rate that is 300 times too low takes far less."""
    assert "learning_rate_too_low" not in find(PROBED["learning_rate_too_low"], n=15)
    slower = tried(2e-5, 8e-5, 3.2e-4, 1.25e-3, **(FLAT | SILENT))
    assert "learning_rate_too_low" in find(slower, n=15)


@pytest.mark.parametrize("name", sorted(PROBED))
def test_without_it_nothing_is_said(name: str) -> None:
    def change(i, scalars):
        PROBED[name](i, scalars)
        for key in [key for key in scalars if key.startswith("signal/probe/")]:
            del scalars[key]

    found = find(change, n=130 if name == "labels_random" else 40)
    assert name not in [finding.name for finding in found.values() if finding.severity != "advice"]


@pytest.mark.parametrize(("evaluated", "severity"), [(0.5, "advice"), (2.2, "likely")])
def test_dropout_is_judged_without_its_noise(evaluated: float, severity: str) -> None:
    slow = put(Loss=lambda i: 1.5 + noise(i), accuracy=0.3)
    probe = {"signal/probe/mode": 1.0, "signal/probe/loss": 1.5, "signal/probe/eval": evaluated}
    found = find(both(slow, lambda i, scalars: scalars.update(probe)), static={"static_dropout": 0.85}, n=60)
    assert found["dropout_too_high"].severity == severity


FIRST = sorted(set(CASES) - {"not_finite", "batch_too_small", "saturated_units"})


@pytest.mark.parametrize("name", FIRST)
def test_it_is_the_first_that_is_named(name: str) -> None:
    case = dict(CASES[name])
    found = find(case.pop("change", None), **case)
    alarms = [finding.name for finding in found.values() if finding.severity != "advice"]
    assert alarms[:1] in ([], [name])


@pytest.mark.parametrize("name", sorted(all_diagnoses()))
def test_it_has_a_test_and_a_page(name: str) -> None:
    assert name in CASES
    page = (ROOT / "docs" / "diagnoses" / f"{name}.md").read_text()
    for part in ("What it means", "How it was found", "What else it could be", "What to try"):
        assert f"## {part}" in page


def test_what_explains_what_has_no_circle() -> None:
    """In a circle each would be told as a consequence of the other, and which is shown would be an accident."""
    rules = all_diagnoses()
    below = {name: set(rule.explains) for name, rule in rules.items()}
    assert set().union(*below.values()) <= set(rules)
    while below:
        ends = [name for name, others in below.items() if not others & below.keys()]
        assert ends, f"a circle among {sorted(below)}"
        for name in ends:
            del below[name]


def test_no_data_are_blamed_with_confidence() -> None:
    rules = all_diagnoses()
    assert rules["labels_random"].confidence <= 0.5
    assert rules["label_noise"].confidence <= 0.5


def test_limits_lie_at_or_outside_the_healthy_range() -> None:
    for name, limit in LIMITS.items():
        assert limit.low <= limit.high, name
        assert not limit.low < limit.value < limit.high or name in ("row_sum_error",), name


def test_layers_are_named() -> None:
    case = dict(CASES["parameters_not_optimized"])
    assert find(**case)["parameters_not_optimized"].layers == [LAYERS[0], LAYERS[2]]
    case = dict(CASES["dead_units"])
    assert find(case.pop("change"), **case)["dead_units"].layers == ["relu2"]


def test_nodes_of_graphs_are_no_targets() -> None:
    """64 nodes, 8 graphs: batches of 8 labels differ as chance has it, which for 64 would be too much."""

    def change(i, scalars):
        scalars |= {"signal/target_mean": (0.25, 0.75, 0.875, 0.125, 0.625)[i % 5], "signal/target_variance": 0.18}
        scalars |= {"signal/samples": 64.0, "signal/target_rows": 8.0}

    assert "data_not_shuffled" not in find(change)
    assert "data_not_shuffled" in find(both(change, put(target_rows=64.0)))

"""What follows from something else is told as its consequence: rates, clipping and units that the cause has made so."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.core.diagnosis.test_diagnoses import FLAT, STUCK, both, find, put
from tests.core.diagnosis.test_other_programs import alarms, tried
from tests.histories import make_header

QUIET = {"NormTest": math.nan, "HessMaxEV": math.nan}


def gradients(i: int) -> dict[str, np.ndarray]:
    return {"GradNorm": np.array([0, 0, 0, 0, 0.0, 0.4] if i > 12 else [0.4] * 6)}


def test_units_that_died_while_few_records_looked_at_them() -> None:
    """Looks at units are rarer than records on a busy machine: one look and gradients of zero are enough."""
    dead = put(**STUCK, dead=lambda i: {0: 0.3, 4: 0.4, 8: 0.5, 16: 1.0}.get(i, math.nan))
    assert alarms(dead, layers=gradients, n=30) == ["learning_rate_too_high"]
    back = put(**STUCK, dead=lambda i: {0: 0.3, 4: 0.4, 8: 0.5, 16: 1.0}.get(i, math.nan))
    found = find(back, n=30)  # all still get a gradient: one look may be an accident
    assert "it killed units" not in "".join(finding.text for finding in found.values())


@pytest.mark.parametrize("unseen", [True, False])
def test_short_steps_that_gain_on_their_own_samples_only_are_not_too_short(unseen: bool) -> None:
    """Labels that mean nothing leave a small gradient, and so short steps of SGD."""
    loss = {"Loss": lambda i: 2.305 + 0.002 * math.sin(7.7 * i)} if unseen else FLAT
    gain = 5e-4 if unseen else 1e-6
    quiet = both(
        put(steps_to_go=500, UpdateSize=4e-3, Distance=0.5, label_rows=32, **QUIET),
        lambda i, scalars: scalars.update({"NormTest": 0.7 if not i else math.nan}),
    )
    steps = tried(gain / 4, gain, 3.9 * gain, 12 * gain, **(STUCK | loss))
    told = alarms(both(steps, quiet), n=18, every=25)
    assert ("learning_rate_too_low" in told) is not unseen


def test_clipping_of_gradients_that_targets_have_made_large() -> None:
    change = put(
        target_scale=3000, target_std=1000, output_rms=0.1, Loss=lambda i: 9e6 + i, GradNormClipped=1e-5, UpdateSize=1e-3,
        Distance=0.01,
    )  # fmt: skip
    found = find(change, header=make_header("MSELoss"), n=80)
    assert list(found) == ["targets_not_scaled"]
    assert "clipping_too_hard" in found["targets_not_scaled"].explains


@pytest.mark.parametrize(("clipped", "told"), [(3e-4, True), (5e-3, False)])
def test_clipping_under_a_loss_scale_whatever_the_schedule_does(clipped: float, told: bool) -> None:
    """Gradients of a fifth, clipped at 1 while they were still scaled; then a schedule takes the rate down."""
    change = put(**STUCK, loss_scale=16384, GradNormClipped=clipped, LearningRate=lambda i: 0.03 if i < 30 else 0.009)
    found = find(change, n=60)
    assert ("clipped_before_unscaled" in found and not found["clipped_before_unscaled"].retracted) is told


def test_eps_is_the_reason_of_short_steps_to_the_end() -> None:
    header = make_header("CrossEntropyLoss", "Adam")
    header.optimizers[0].groups[0]["eps"] = "0.1"
    level = lambda i: 1 - 0.85 * min(1, max(0, i - 8) / 10) - i / 4000  # noqa: E731
    slowly = {"Loss": lambda i: 2.3 * level(i), "accuracy": lambda i: 1 - 0.9 * level(i), "UpdateSize": 0.01}
    steps = tried(0.0005, 0.002, 0.008, 0.032, **slowly, **QUIET, Distance=0.4)
    assert alarms(steps, header=header, n=100, finished=True) == ["adam_eps_too_large"]


@pytest.mark.parametrize(("stays", "right", "back"), [(0.4, 0.85, True), (15.0, 0.1, False)])
def test_a_network_that_began_trained_and_came_back_from_a_spike(stays: float, right: float, back: bool) -> None:
    """Eight times its first loss, and still far better than a guess."""
    loss = {"Loss": lambda i: 0.05 if i < 5 else 15.0 if i == 5 else stays, "accuracy": right}
    assert find(put(**loss, UpdateSize=0.01, Distance=0.2), n=60)["learning_rate_too_high"].retracted is back


@pytest.mark.parametrize(("length", "peak", "told"), [(0.9, 9.0, True), (0.3, 9.0, False), (0.9, 3.0, False)])
def test_steps_that_scattered_a_network_which_learned_nothing_since(length: float, peak: float, told: bool) -> None:
    """Lengths of weights are ten: steps of 9 % of them, no longer than usual ones by themselves."""
    loss = {
        "Loss": lambda i: peak if i == 3 else 2.31 + 0.002 * math.sin(7.7 * i),
        "accuracy": 0.1,
        "label_top_share": 0.2,
    }
    steps = put(**loss, UpdateSize=lambda i: length if i < 8 else 1e-3, ParamNorm=10, Distance=1.0, steps_to_go=400)
    found = find(steps, n=60, every=3)
    words = "".join(finding.text for finding in found.values())
    assert ("nothing was learned since" in words) is told


@pytest.mark.parametrize(("top", "told"), [(1.0, ""), (0.4, "init_too_large")])
def test_the_first_loss_of_a_batch_of_one_class_says_nothing_of_the_initialisation(top: float, told: str) -> None:
    loss = {"Loss": lambda i: 7.5 * 0.5**i + 0.5, "accuracy": 0.3, "label_top_share": top}
    assert "".join(find(put(**loss, label_entropy=0.0 if top == 1 else 2.0, output_rms=3.0), n=6)) == told


def test_dark_pictures_whose_targets_go_to_255_behind_a_sigmoid() -> None:
    """Most of their pixels are zero: so is the median."""
    change = put(
        target_scale=0, target_std=80, target_min=0, target_max=255, output_rms=0.5, output_min=1e-9, output_max=1.0,
        Loss=lambda i: 11000 + i, UpdateSize=1e-2, Distance=0.3,
    )  # fmt: skip
    found = find(change, header=make_header("MSELoss"), n=80)
    assert found["targets_not_scaled"].severity == "likely"
    tail = both(change, put(target_max=2000))  # a few far ones make a deviation large
    assert "targets_not_scaled" not in find(tail, header=make_header("MSELoss"), n=80)

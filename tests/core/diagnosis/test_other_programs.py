"""What runs of programs that are not in the benchmark taught: records far apart, losses without a known chance, slow
starters, facts that do no harm."""

from __future__ import annotations

import math

import pytest

from cockpit_core.diagnosis.history import Observation
from cockpit_core.diagnosis.judge import Judge
from cockpit_core.diagnosis.view import View
from tests.core.diagnosis.test_diagnoses import FLAT, STUCK, both, put, tried, vectors, with_fresh
from tests.histories import find, make_header, replay_history

DEFAULT = (0, 1, 2, 5, 11, 23, 43, 61, 83, 103, 127, 163, 197, 241)


def alarms(*args, **options) -> list[str]:
    return [finding.name for finding in find(*args, **options).values() if finding.severity != "advice"]


def view_of(judge: Judge) -> View:
    return View(judge.history, judge.facts)


def at(steps, numbers, header=None) -> View:
    """Records at these steps; ``numbers(step)`` gives their scalars."""
    judge = Judge()
    judge.know(header or make_header())
    judge.start({}, 0, 0)
    for step in steps:
        judge.see(Observation(step, numbers(step), {}, 32))
    return view_of(judge)


# ---- learning rates and schedules ----


def test_a_rate_that_rose_long_ago_is_no_warm_up() -> None:
    """Fourteen records in 240 steps: the first of the last twelve is of the warm-up, which ended at step 30."""
    view = at(DEFAULT, lambda step: {"Loss": 2.3, "LearningRate": min(1.0, (step + 1) / 30)})
    assert not view.rate_rises
    assert at(DEFAULT, lambda step: {"Loss": 2.3, "LearningRate": (step + 1) / 240}).rate_rises
    assert at(range(12), lambda step: {"Loss": 2.3, "LearningRate": (step + 1) / 240}).rate_rises


def test_a_rate_that_is_gone_for_most_of_the_run() -> None:
    """StepLR(10, 0.5) stepped at every batch: nothing happens behind step 100, though the loss has fallen by half."""

    def gone(i, scalars):
        put(LearningRate=0.1 * 0.5 ** (5 * i // 10), Loss=max(0.46, 1 - i / 20) * 2.3, accuracy=0.8)(i, scalars)

    assert alarms(gone, n=40) == ["schedule_too_fast"]
    found = find(gone, n=40)["schedule_too_fast"]
    assert "changed nothing" in found.text

    def learned(i, scalars):  # nothing is left to do
        put(LearningRate=0.1 * 0.5 ** (5 * i // 10), Loss=max(0.04, 1 - i / 20) * 2.3, accuracy=1.0)(i, scalars)

    assert alarms(learned, n=40) == []


@pytest.mark.parametrize(
    "shape", [lambda x: (1 + math.cos(math.pi * x)) / 2, lambda x: 1 - x, lambda x: 0.1 ** (4 * x // 1)]
)
def test_schedules_that_end_at_nothing_are_meant_so(shape) -> None:
    view = at(range(0, 300, 5), lambda step: {"Loss": 2.0, "LearningRate": 0.1 * shape(step / 300) + 1e-12})
    assert view.rate_gone < 0.05


def test_a_rate_that_comes_back_is_not_gone() -> None:
    view = at((0, 50, 100, 150), lambda step: {"Loss": 2.0, "LearningRate": 0.1 if step in (0, 150) else 1e-6})
    assert view.rate_gone == 0


SLOW = tried(0.2, 0.8, 3.2, 12.5, loss=150.0, Loss=lambda i: 160 * math.exp(-0.025 * i) + math.sin(9.1 * i) / 10,
             UpdateSize=0.006, Distance=lambda i: 0.01 * i, NormTest=math.nan, HessMaxEV=math.nan,
             steps_to_go=math.nan)  # fmt: skip


def test_a_rate_that_is_too_low_for_a_loss_without_chance() -> None:
    """Steps 16 times as long would do 16 times as much. A network that was trained before is left alone."""
    fresh = with_fresh()
    fresh.loss = "OwnLoss"
    assert alarms(SLOW, header=fresh, n=30) == ["learning_rate_too_low"]
    assert alarms(SLOW, header=make_header("OwnLoss"), n=30) == []


def test_a_rate_that_was_too_low_before_it_fell() -> None:
    """A schedule of steps takes it to a third after two thirds of the run: that is not why nothing was learned."""
    low = put(**FLAT, steps_to_go=30_000, UpdateSize=1e-4, Distance=0.01, HessMaxEV=0.01, NormTest=0.5,
              LearningRate=lambda i: 0.1 if i < 25 else 0.03)  # fmt: skip
    judge = replay_history(low, n=60)
    assert not judge.found["learning_rate_too_low"].retracted


def test_weights_that_have_doubled_while_nothing_was_learned() -> None:
    wild = put(**STUCK, ParamNorm=lambda i: 10 + 0.4 * i, Distance=lambda i: 0.6 * i, UpdateSize=0.3, NormTest=0.5)
    assert alarms(wild, n=50, header=make_header(optimizer="Adam")) == ["learning_rate_too_high"]
    calm = put(**STUCK, ParamNorm=lambda i: 10 + 0.1 * i, Distance=lambda i: 0.6 * i, UpdateSize=0.03, NormTest=0.5)
    assert "learning_rate_too_high" not in alarms(calm, n=50, header=make_header(optimizer="Adam"))


def test_steps_that_hardly_change_the_loss_are_not_too_long() -> None:
    """Labels that mean nothing: an averaged direction does nothing to the loss of a batch, neither does a quarter of it."""
    quiet = {"steps_to_go": 150, "HessMaxEV": 0.5, "UpdateSize": 0.1, "Distance": 8.0}
    nothing = tried(-1e-4, -5e-4, -4e-3, -0.05, **(STUCK | quiet))
    assert "learning_rate_too_high" not in alarms(nothing, n=20)
    beyond = tried(-0.02, -0.3, -4.0, -50.0, **(STUCK | quiet))
    assert "learning_rate_too_high" in alarms(beyond, n=20)


def test_momentum_that_carries_the_weights_away() -> None:
    """The loss falls well, and the weights are eleven times as long as they were."""
    away = put(ParamNorm=lambda i: 10 + 3 * i, Distance=lambda i: 3.0 * i)
    assert alarms(away, header=make_header(momentum="0.999")) == ["momentum_too_high"]
    assert alarms(put(ParamNorm=lambda i: 10 + i / 40), header=make_header(momentum="0.999")) == []


def test_eps_that_makes_steps_short_while_longer_ones_would_do() -> None:
    header = make_header("CrossEntropyLoss", "Adam")
    header.optimizers[0].groups[0]["eps"] = "0.1"
    falls = {"Loss": lambda i: 2.3 * (1 - i / 32), "accuracy": lambda i: 0.1 + i / 50, "UpdateSize": 0.02}
    quiet = {"NormTest": math.nan, "HessMaxEV": math.nan, "Distance": 0.5}
    assert alarms(tried(0.002, 0.008, 0.032, 0.125, **falls, **quiet), header=header, n=20) == ["adam_eps_too_large"]
    assert alarms(tried(0.002, 0.006, 0.01, -0.2, **falls, **quiet), header=header, n=20) == []


# ---- harm that does not show ----


def rising(start: float, later: float):
    """A plateau at ``start`` of chance, and a fall to ``later`` behind step 100."""
    return put(Loss=lambda i: 2.3 * (start if i < 20 else max(later, start - 0.06 * (i - 20))), accuracy=0.2)


def small_header():
    header = with_fresh()
    for place, size in ((0, 100), (1, 10), (2, 5000), (4, 5000)):
        header.layers[place].size = size
    return header


@pytest.mark.parametrize("name", ["parameters_not_optimized", "graph_detached"])
def test_a_small_part_that_does_not_learn_is_an_alarm_when_the_rest_stays_behind(name: str) -> None:
    """A transformer without its embedding: a healthy one begins with a plateau as well."""
    more = {"header": small_header(), "n": 40}
    if name == "graph_detached":
        fact = put(ungraded_prefix=2, ungraded_none=2, ungraded_where=1)
    else:
        fact = put()
        more |= {"static": {"static_unoptimized": 2}, "layers": vectors(UpdateSize=[0, 0, 0.1, 0.1, 0.1, 0.1])}
    assert alarms(both(rising(0.95, 0.2), fact), **more) == []
    assert alarms(both(rising(0.9, 0.9), fact), **more) == [name]


def test_gradients_do_not_vanish_behind_a_head_of_zeros() -> None:
    """The first outputs are all alike, and the first gradients behind the head are zero; they come later."""
    grows = lambda i: {"GradNorm": vectors(GradNorm=[1e-7 if i < 4 else 0.1] * 4 + [1.0] * 2)(i)["GradNorm"]}  # noqa: E731
    slow = put(**STUCK, output_spread=lambda i: 1e-9 if i == 0 else 0.01, NormTest=0.5)
    assert "vanishing_gradients" in find(slow, layers=grows, n=20)
    assert "vanishing_gradients" not in find(slow, layers=grows, n=20, static={"static_constant": 1})


def test_decay_that_does_not_slow_a_run_down_is_no_alarm() -> None:
    """The weights shrink, the loss falls steadily, a little behind others."""
    shrinks = put(ParamNorm=lambda i: 10 * 0.97**i, GradNormClipped=1.0, accuracy=0.5,
                  Loss=lambda i: 2.3 * max(0.4, 0.99 - 0.0135 * i) + 0.01 * math.sin(7.7 * i))  # fmt: skip
    assert alarms(shrinks, header=make_header(weight_decay="0.1"), n=30) == []


def test_outliers_in_a_run_that_falls_steadily_are_no_alarm() -> None:
    """They cost six times chance at first, so that it takes long to come below it."""
    tails = {
        "input_tail": lambda i: 400.0,
        "accuracy": math.nan,
        "loss_max": 3.0,
        "target_std": 1.0,
        "target_scale": 0.6,
    }
    high = put(**tails, Loss=lambda i: 6 * math.exp(-0.12 * i) + 0.005 * math.sin(7.7 * i))
    header = make_header("MSELoss", "Adam")
    assert view_of(replay_history(high, header=header, n=14)).struggles
    assert alarms(high, header=header, n=25) == []
    rests = put(**tails, Loss=lambda i: 1.02 + 0.05 * math.sin(7.7 * i))
    assert alarms(rests, header=header, n=25) == ["input_outliers"]


# ---- data ----


def test_few_samples_are_no_reason_to_doubt_the_labels() -> None:
    stuck = put(Loss=lambda i: 2.31 + 0.1 * math.sin(7.7 * i), accuracy=0.1, Distance=5.0, NormTest=1.5, samples=4)
    assert "labels_random" in alarms(stuck, n=40, batch=32)
    assert "labels_random" not in alarms(stuck, n=40, batch=4)


def test_the_same_place_of_an_epoch_is_not_the_same_batch() -> None:
    """Epochs of 20 steps in a fixed order, looked at every 20 steps."""
    order = put(batch_checksum=lambda i: 0.1 * i if i < 4 else 0.5)
    judge = replay_history(order, n=20, every=20)
    assert "batch_repeated" not in judge.found
    assert "batch_repeated" in replay_history(put(batch_checksum=0.5), n=20, every=20).found
    assert "batch_repeated" in replay_history(order, n=20, every=2).found  # two steps later: it is


def test_validation_that_stands_still_while_early_losses_were_wide() -> None:
    """Individual losses are known of the first steps only, when they were as wide as the whole loss."""

    def change(i, scalars):
        scalars["Loss"] = 2.3 * 0.7**i
        scalars |= {"signal/recent_loss": 2.3 * 0.7**i, "signal/recent_count": 16.0, "signal/recent_peak": 2.3}
        if i > 2:
            del scalars["signal/loss_std"]
        else:
            scalars["signal/loss_std"] = 30.0

    assert "overfitting" in alarms(change, logged=lambda i: {"valid_loss": 1.9})


# ---- losses without a zero ----


def likelihood(level: float, chance: float, floor: float, kind: str):
    """Records of a loss whose share of chance goes from 1 to ``level``."""

    def change(i, scalars):
        share = max(level, 1 - 0.05 * i)
        loss = floor + share * (chance - floor) if kind == "PoissonNLLLoss" else chance + 0.5 * math.log(share)
        scalars |= {"Loss": loss, "signal/likelihood_chance": chance, "signal/likelihood_floor": floor}
        scalars["signal/loss_std"] = 0.3
        for name in ("accuracy", "classes", "label_top_share"):
            scalars.pop(f"signal/{name}", None)

    return change


@pytest.mark.parametrize("kind", ["PoissonNLLLoss", "GaussianNLLLoss"])
@pytest.mark.parametrize("chance", [0.4, 0.0, -2.0])
def test_likelihoods_have_a_share_of_chance(kind: str, chance: float) -> None:
    header = make_header(kind, "Adam")
    good = view_of(replay_history(likelihood(0.2, chance, chance - 1, kind), header=header, n=60))
    assert good.level == pytest.approx(0.2, rel=0.05)
    assert good.thrives
    assert not good.struggles
    stuck = view_of(replay_history(likelihood(1.0, chance, chance - 1, kind), header=header, n=60))
    assert stuck.level == pytest.approx(1, rel=0.05)
    assert stuck.stuck
    found = find(likelihood(1.0, chance, chance - 1, kind), header=header, n=60)
    assert found["not_learning"].severity == "advice"  # real targets may be mostly noise
    assert "labels_random" not in found


def test_targets_of_a_density_may_be_too_large() -> None:
    high = both(
        likelihood(1.0, 5.0, 4.0, "GaussianNLLLoss"),
        put(Loss=lambda i: 900 / (i + 1) + 9, target_scale=100, output_rms=0.1),
    )
    assert "targets_not_scaled" in alarms(high, header=make_header("GaussianNLLLoss"), n=10)


def test_a_likelihood_that_is_maximised_has_none() -> None:
    change = both(likelihood(0.2, 0.4, -0.6, "PoissonNLLLoss"), put(loss_factor=-1.0))
    assert math.isnan(view_of(replay_history(change, header=make_header("PoissonNLLLoss"))).level)


def test_a_network_in_which_nothing_bends_comes_to_rest() -> None:
    """It is seen in the graph: no Sequential tells it, and the loss rests at a third of chance and more."""
    rests = both(put(Loss=lambda i: 2.3 * max(0.45, 1 - 0.1 * i) + 0.05 * math.sin(7.7 * i), accuracy=0.6), linear)
    assert alarms(rests, n=60) == ["missing_nonlinearity"]
    assert alarms(linear, n=60) == []  # it learns well: a linear task


def linear(i, scalars):
    if i == 0:
        scalars["signal/linear_layers"] = 3.0

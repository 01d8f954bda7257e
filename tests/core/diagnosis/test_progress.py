"""Is a run as far as it should be? Runs that are seldom tracked, and losses that need not fall."""

from __future__ import annotations

import math

from cockpit_core.diagnosis.history import Observation
from cockpit_core.diagnosis.judge import Judge, rank
from cockpit_core.diagnosis.view import View
from tests.histories import find, make_header, replay_history


def view_of(judge: Judge) -> View:
    assert judge.facts is not None
    return View(judge.history, judge.facts)


def alarms(judge: Judge) -> list[str]:
    return [finding.name for finding in rank(judge.found.values()) if finding.severity != "advice"]


def stuck_at(level: float, **signals: float):
    def change(i: int, scalars: dict[str, float]) -> None:
        scalars |= {"Loss": 2.3 * level + 0.02 * math.sin(7.7 * i), "signal/accuracy": 0.1}
        scalars |= {f"signal/{name}": value for name, value in signals.items()}

    return change


def test_what_is_behind_is_told_by_time() -> None:
    """Nine tenths of chance: fine after 20 steps, not after 80."""
    assert not view_of(replay_history(stuck_at(0.9), n=5)).struggles
    assert view_of(replay_history(stuck_at(0.9), n=17)).struggles
    assert not view_of(replay_history()).struggles


def test_coming_down_to_the_mean_is_no_gain() -> None:
    def change(i: int, scalars: dict[str, float]) -> None:
        scalars |= {"Loss": 2.3 * (1 + 4 * math.exp(-i)), "signal/accuracy": 0.1}

    view = view_of(replay_history(change))
    assert view.drop > 0.5
    assert abs(view.gain) < 0.05
    assert not view.learns


def test_a_run_that_is_seldom_tracked_is_known_by_its_losses() -> None:
    """Five records in 400 steps: what lies between them was glanced at."""
    recent = {"recent_loss": 2.3, "recent_count": 16.0, "recent_peak": 2.4, "recent_trend": 0.3}
    judge = replay_history(stuck_at(1.0, steps_to_go=400, **recent), n=5, every=80)
    assert view_of(judge).sparse
    assert "not_learning" in alarms(judge) or "not_learning" in judge.found["labels_random"].explains
    falls = {"recent_loss": 0.5, "recent_count": 16.0, "recent_peak": 2.4, "recent_trend": -30.0}
    assert alarms(replay_history(stuck_at(1.0, steps_to_go=400, **falls), n=5, every=80)) == []


def test_a_plateau_at_the_start_is_no_alarm() -> None:
    """Nothing learned after 150 steps: said as advice. After 300 it is an alarm, and data are not blamed a little below
    chance."""
    stuck = stuck_at(1.0, steps_to_go=400)
    early = replay_history(stuck, n=30)
    assert alarms(early) == [] or "labels_random" in early.found
    assert "not_learning" in early.found or "not_learning" in early.found["labels_random"].explains
    below = replay_history(stuck_at(0.96, steps_to_go=400), n=30)
    assert alarms(below) == []
    assert alarms(replay_history(stuck, n=60))


def test_agreement_at_the_first_step_blames_no_labels() -> None:
    """Individual gradients were measured at the first steps alone."""

    def change(i: int, scalars: dict[str, float]) -> None:
        stuck_at(1.0, steps_to_go=400)(i, scalars)
        scalars |= {"Distance": 3.0, "NormTest": 1.0 if i < 3 else math.nan}

    assert "labels_random" not in replay_history(change, n=40).found

    def measured(i: int, scalars: dict[str, float]) -> None:
        change(i, scalars)
        scalars["NormTest"] = 1.0

    assert "labels_random" in replay_history(measured, n=40).found


def test_a_run_that_is_seldom_tracked_takes_findings_back() -> None:
    """It learns after a long plateau: three records and as long as the run was when the finding last held are enough."""

    def change(i: int, scalars: dict[str, float]) -> None:
        learned = {"recent_loss": 2.3 if i < 6 else 0.3, "recent_count": 16.0, "recent_peak": 2.4, "recent_trend": 0.0}
        stuck_at(1.0 if i < 6 else 0.1, steps_to_go=400, **learned)(i, scalars)
        scalars["signal/accuracy"] = 0.1 if i < 6 else 0.9

    judge = replay_history(change, n=14, every=60)
    assert "not_learning" in judge.found
    assert judge.found["not_learning"].retracted


def test_a_peak_between_records_counts() -> None:
    judge = replay_history(stuck_at(1.0, recent_peak=230.0))
    assert view_of(judge).spike > 50


def test_targets_that_the_network_makes_itself_need_not_be_reached() -> None:
    """Q-learning: targets grow with what is learned, and the loss stays that of ignoring the input."""

    def change(i: int, scalars: dict[str, float], grows: bool = True) -> None:
        size = 0.1 + 0.05 * i * grows
        scalars |= {
            "Loss": size**2,
            "signal/target_std": size,
            "signal/target_mean": 3 * size,
            "signal/target_scale": 1.0,
        }
        scalars |= {"Distance": 5.0, "signal/loss_std": size**2, "signal/target_variance": size**2}

    header = make_header("SmoothL1Loss", "Adam")
    assert [f for f in find(change, header=header).values() if f.severity != "advice"] == []
    view = view_of(replay_history(change, header=header))
    assert view.moving_targets
    assert not view_of(replay_history(lambda i, s: change(i, s, False), header=header)).moving_targets


def test_an_adversary_that_is_caught_up_with_has_learned() -> None:
    """A discriminator is good at first, and at chance in the end."""

    def change(i: int, scalars: dict[str, float]) -> None:
        scalars |= {"Loss": 0.2 if 3 <= i < 8 else 0.69, "signal/accuracy": 0.5, "signal/label_top_share": 0.5}

    found = find(change, header=make_header("BCEWithLogitsLoss", "Adam"))
    assert [name for name, finding in found.items() if finding.severity != "advice"] == []


def test_one_half_of_an_adversary_has_no_chance_to_compare_with() -> None:
    change = stuck_at(0.3, label_top_share=1.0)
    assert math.isnan(view_of(replay_history(change, header=make_header("BCEWithLogitsLoss", "Adam"))).level)


def test_the_mean_rate_is_over_time_and_not_over_records() -> None:
    """Within a budget the first and the last steps may be on record, and little in between: warm-up and the end of a cosine."""
    judge = Judge()
    judge.know(make_header())
    judge.start({}, 0, 0)
    for step in (0, 1, 2, 5, 150, 300, 370, 380, 384, 390, 395, 399):
        rate = 0.1 * min(1.0, (step + 1) / 40) * (1 + math.cos(math.pi * step / 400)) / 2
        judge.see(Observation(step, {"Loss": 2.0, "LearningRate": rate}, {}, 32))
    assert 0.4 < view_of(judge).rate_mean < 0.6


def test_what_begins_above_chance_is_given_the_time_to_come_down() -> None:
    """1.7 times chance at the start, as with rare labels: a third less after 60 steps is a good run, standing still is not."""

    def falling(speed: float):
        def change(i: int, scalars: dict[str, float]) -> None:
            scalars |= {"Loss": 2.3 * 1.7 * math.exp(-speed * i), "signal/accuracy": 0.1}

        return change

    good, slow = view_of(replay_history(falling(0.035), n=13)), view_of(replay_history(falling(0.005), n=13))
    assert good.level > 1.05
    assert good.comes_down
    assert not good.struggles
    assert slow.struggles
    assert not view_of(replay_history(falling(0.02), n=30)).comes_down  # 145 steps, and still no better than chance


def test_moving_targets_have_no_chance() -> None:
    def change(i: int, scalars: dict[str, float]) -> None:
        scalars |= {"signal/target_std": 0.3, "signal/target_mean": -0.05 * i}

    assert math.isnan(view_of(replay_history(change, header=make_header("MSELoss"), n=20)).level)
    assert not math.isnan(view_of(replay_history(stuck_at(1, target_std=1.5), header=make_header("MSELoss"))).level)


def test_the_batch_of_a_function_loss_is_that_of_the_signals() -> None:
    """Their header may have no batch size, and signals come at the first steps only."""

    def change(i: int, scalars: dict[str, float]) -> None:
        scalars["signal/samples"] = 32.0 if i == 0 else math.nan

    def unknown(i: int, scalars: dict[str, float]) -> None:
        del scalars["signal/samples"]

    assert view_of(replay_history(change, batch=0)).batch == 32
    for hidden in (change, unknown):
        assert "batchnorm_few_samples" not in find(hidden, batch=0, static={"static_batchnorms": 2})
    assert "batchnorm_few_samples" in find(unknown, batch=2, static={"static_batchnorms": 2})


def test_a_rate_that_is_too_low_may_learn_and_far_too_slowly() -> None:
    def change(i: int, scalars: dict[str, float]) -> None:
        scalars |= {
            "Loss": 2.3 * (1 - 0.004 * i) + 0.003 * math.sin(7.7 * i),
            "signal/accuracy": 0.5,
            "Distance": 0.02 * i,
        }
        scalars |= {"UpdateSize": 0.005, "HessMaxEV": 5.0}

    assert view_of(replay_history(change, n=30)).learns
    assert alarms(replay_history(change, n=30)) == ["learning_rate_too_low"]
    longer = lambda i, scalars: (change(i, scalars), scalars.update({"UpdateSize": 0.05}))  # noqa: E731
    assert "learning_rate_too_low" not in alarms(replay_history(longer, n=30))


def test_how_hard_a_batch_is_by_itself_is_no_progress() -> None:
    """Targets with heavy tails: the first batches are twice as hard, and the network is where it began."""

    def change(i: int, scalars: dict[str, float]) -> None:
        hard = 4.0 if i < 3 else 1.0
        scalars |= {"Loss": hard * 1.02, "signal/target_std": math.sqrt(hard), "signal/loss_std": 1.0}

    view = view_of(replay_history(change, header=make_header("MSELoss", "Adam")))
    assert abs(view.drop) < 0.01
    assert abs(view.level - 1.02) < 0.01
    assert view.struggles


def test_records_far_apart_are_known_by_the_losses_before_them() -> None:
    """The mean of sixteen losses counts, over the mean variance of all targets, not the last batch alone."""

    def change(i: int, scalars: dict[str, float]) -> None:
        scalars |= {"Loss": 5.0 if i % 2 else 0.1, "signal/target_std": 1.0, "signal/recent_loss": 0.4}
        scalars |= {"signal/recent_count": 16.0}

    view = view_of(replay_history(change, n=10, header=make_header("MSELoss", "Adam")))
    assert not view.sparse
    assert abs(view.level - 0.4) < 1e-9


def test_where_the_loss_will_end_goes_by_its_slope_and_what_is_left_of_the_rate() -> None:
    """0.02 a record of 5 steps, a rate that halves in 33 steps: 47 steps more at this slope."""

    def change(i: int, scalars: dict[str, float]) -> None:
        scalars |= {"Loss": 2.0 - 0.02 * i, "LearningRate": 0.1 * 0.9**i}

    view = view_of(replay_history(change, n=30))
    life = 5 * math.log(2) / -math.log(0.9)
    low = 2.0 - 0.02 * 26  # the middle of the last seven
    assert abs(view.rate_life - life) < 1e-6
    assert abs(view.final_level / view.level - (1 - 0.004 * life / math.log(2) / low)) < 1e-6


def test_a_loss_that_began_near_zero_has_not_run_away_at_ten_times_that() -> None:
    def change(i: int, scalars: dict[str, float]) -> None:
        scalars |= {"Loss": -0.03 - 0.01 * i}
        del scalars["signal/loss_max"]

    assert "loss_sign" not in find(change, header=make_header("Likelihood"))

    def runs_away(i: int, scalars: dict[str, float]) -> None:
        change(i, scalars)
        scalars["Loss"] = -0.03 * 1.5**i

    assert "loss_sign" in find(runs_away, header=make_header("Likelihood"))


def test_sorted_targets_are_an_alarm_where_harm_is_seen() -> None:
    """Real targets, three quarters in order: 0.56 of what batches of one kind would show."""

    def change(i: int, scalars: dict[str, float]) -> None:
        scalars |= {"signal/target_mean": (-1.0, 1.0)[i % 2] * 0.75, "signal/target_variance": 0.44}
        scalars |= {"signal/target_std": math.sqrt(0.44), "signal/target_rows": 32.0, "Loss": 0.19 * scalars["Loss"]}

    def harmed(i: int, scalars: dict[str, float]) -> None:
        change(i, scalars)
        scalars["Loss"] = 0.9 + 0.1 * math.sin(7.7 * i)

    assert "data_not_shuffled" not in find(change, header=make_header("MSELoss", "Adam"))
    assert "data_not_shuffled" in find(harmed, header=make_header("MSELoss", "Adam"))


def test_a_spike_between_two_early_records_that_is_over_is_no_alarm() -> None:
    """Adagrad's first steps: 80 times the first loss for three steps, and down again at the next record."""

    def change(i: int, scalars: dict[str, float]) -> None:
        scalars |= {"signal/recent_count": float(min(16, 5 * i)), "signal/recent_peak": 180.0 if i else 2.3}
        scalars |= {"signal/recent_loss": 30.0 if i in (2, 3) else scalars["Loss"]}

    assert alarms(replay_history(change)) == []

"""What the user logs of validation: which names count, whether it follows the training, and live as from the log."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import cockpit_core
from cockpit_core.diagnoses.base import number
from cockpit_core.diagnosis.logged import Logged, kind_of
from cockpit_core.diagnosis.view import View
from tests.histories import find, replay_history


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("valid_loss", "loss"),
        ("val/loss", "loss"),
        ("loss.test", "loss"),
        ("evalLoss", "loss"),
        ("dev_nll", "loss"),
        ("valid_accuracy", "accuracy"),
        ("val_acc", "accuracy"),
        ("train_loss", ""),
        ("loss", ""),
        ("value_loss", ""),
        ("latest_loss", ""),
        ("evaluation_time", ""),
        ("test_pace", ""),
    ],
)
def test_names_of_validation_are_known(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_of_two_names_the_first_counts_and_memory_is_bounded() -> None:
    logged = Logged()
    for step in range(1000):
        logged.add(step, {"valid_loss": 2.0 + step, "test_loss": 1.0, "lr": 0.1}, 1.0)
    looks = logged.looks("loss")
    assert looks is not None
    assert (looks.count, len(looks.last), looks.first.value, looks.lowest.value) == (1000, 3, 2.0, 2.0)  # type: ignore[union-attr]
    assert not logged.add(0, {"lr": 0.1, "valid_loss": float("nan")}, 1.0)


def test_a_little_more_than_all_is_not_all() -> None:
    """ "Makes validation worse (100 % of its first loss)" made no sense."""
    assert [number(value) for value in (99.7, 100.0, 101.4, 142.0)] == ["100", "100", "101", "140"]


def features(logged, **options) -> View:
    judge = replay_history(logged=logged, **options)
    assert judge.facts is not None
    return View(judge.history, judge.facts)


def test_validation_that_falls_with_training_is_healthy_in_any_unit() -> None:
    """The training loss falls to a tenth; so does this one, which is a sum over a thousand samples."""
    assert find(logged=lambda i: {"valid_loss": 1000 * (2.3 * 0.9**i + 0.3)}) == {}


def test_a_network_that_was_good_at_the_first_look_has_nothing_left_to_follow() -> None:
    """The whole of a graph at every step: validation was at its best by the first look, and training went on."""

    def fast(i: int, scalars: dict[str, float]) -> None:
        scalars["Loss"] = 2.3 * 0.4**i + 0.2 * 0.95**i
        scalars["signal/batch_checksum"] = 0.5

    found = find(fast, logged=lambda i: {"valid_loss": 0.38 + i / 1000, "valid_accuracy": 0.87}, batch=340)
    assert [f.severity for f in found.values()] == ["advice"]
    poor = find(fast, logged=lambda i: {"valid_loss": 2.2 + i / 1000}, batch=340)
    assert {name: own.severity for name, own in poor.items()} == {"overfitting": "likely", "batch_repeated": "advice"}


def test_next_to_nothing_left_in_training_and_much_in_validation_is_known_by_heart() -> None:
    def fast(i: int, scalars: dict[str, float]) -> None:
        scalars["Loss"] = 2.3 * 0.6**i + 1e-3

    assert find(fast, logged=lambda i: {"valid_loss": 0.8})["overfitting"].severity == "likely"
    assert "overfitting" not in find(fast, logged=lambda i: {"valid_loss": 0.3})


def test_labels_that_mean_something_else_in_validation() -> None:
    """Right in training and wrong nearly always elsewhere: even a guess is right more often."""
    right = {"signal/label_rows": 32.0, "signal/wrong_rank": 0.1, "signal/wrong_low": 0.1}
    found = find(lambda i, s: s.update(right), logged=lambda i: {"valid_accuracy": 0.01, "valid_loss": 2.3 + i / 9})
    assert next(iter(found)) == "labels_off_by_one"
    assert found["labels_off_by_one"].severity == "likely"
    assert "overfitting" in found["labels_off_by_one"].explains
    assert "labels_off_by_one" not in find(lambda i, s: s.update(right), logged=lambda i: {"valid_accuracy": 0.12})


def test_one_bad_look_is_no_rise() -> None:
    view = features(lambda i: {"valid_loss": 9.0 if i == 39 else 2.3 * 0.9**i})
    assert view.valid_rise == 1.0
    assert view.valid_left < 0.1


def test_a_rise_after_the_best_is_advice() -> None:
    found = find(logged=lambda i: {"valid_loss": 2.3 * 0.85**i if i < 20 else 0.05 + 0.005 * i})
    assert found["overfitting"].severity == "advice"
    assert "lowest at step 95" in found["overfitting"].text  # the fifth look, behind record 19
    assert f"higher at step {found['overfitting'].step}" in found["overfitting"].text  # the words stay, the run goes on


def test_causes_that_are_seen_name_it_as_their_consequence() -> None:
    def same(i: int, scalars: dict[str, float]) -> None:
        scalars["signal/batch_checksum"] = 0.5

    found = find(same, logged=lambda i: {"valid_loss": 2.3 + i / 100})
    assert list(found) == ["batch_repeated"]
    assert "overfitting" in found["batch_repeated"].explains


def test_a_feature_that_nearly_tells_the_target_does_harm_where_validation_falls_behind() -> None:
    def leak(i: int, scalars: dict[str, float]) -> None:
        scalars |= {"signal/input_target": 0.95, "signal/input_target_where": 3.0}
        scalars |= {"signal/target_std": 1.0, "Loss": scalars["Loss"] / 2.3}

    from tests.core.diagnosis.test_diagnoses import values_header

    assert find(leak, header=values_header())["target_in_inputs"].severity == "advice"
    apart = find(leak, header=values_header(), logged=lambda i: {"valid_loss": 0.5 + 0.5 * 0.9**i})
    assert apart["target_in_inputs"].severity == "likely"


def test_labels_are_suspected_where_little_is_learned_and_that_by_heart() -> None:
    def slow(i: int, scalars: dict[str, float]) -> None:
        scalars |= {"Loss": 2.3 * (1 - 0.12 * i / 60), "signal/loss_std": 0.1, "signal/accuracy": 0.1, "Distance": 5.0}

    worse = find(slow, n=60, logged=lambda i: {"valid_loss": 2.3 + i / 100})
    assert [f.name for f in worse.values() if f.severity != "advice"] == ["labels_random"]
    assert "labels_random" not in find(slow, n=60, logged=lambda i: {"valid_loss": 2.3 - i / 100})


def train_by_heart(logdir: Path, **options) -> cockpit_core.Run:
    """Twenty samples of random labels, known by heart after some steps; validation gets worse meanwhile."""
    torch.manual_seed(0)
    x, y = torch.randn(64, 8), torch.randint(0, 2, (64,))
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer, loss_fn = torch.optim.Adam(model.parameters(), lr=0.02), nn.CrossEntropyLoss()
    run = cockpit_core.track(model, loss_fn, optimizer, logdir, **{"config": ("Loss",), "on_error": "raise", **options})
    for step in range(60):
        optimizer.zero_grad()
        at = torch.arange(12) + step % 5
        loss_fn(model(x[at]), y[at]).backward()
        optimizer.step()
        if step % 5 == 4:
            with torch.no_grad():
                run.log(valid_loss=loss_fn(model(x[16:]), y[16:]))
        if run.should_stop:
            break
    run.close()
    return run


def test_it_is_told_when_it_is_logged_and_the_log_gives_the_same(tmp_path: Path) -> None:
    told: list[cockpit_core.Finding] = []
    run = train_by_heart(tmp_path / "a", on_finding=told.append)
    assert run.findings == cockpit_core.diagnose(tmp_path / "a")
    assert "overfitting" in {finding.name for finding in told}
    assert "overfitting" in {finding.name for finding in cockpit_core.load(tmp_path / "a").findings}
    assert train_by_heart(tmp_path / "b", stop_on="likely").should_stop

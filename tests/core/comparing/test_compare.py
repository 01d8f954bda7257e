"""``compare`` on made-up logs in which it is known what differs, since when, and what must not be compared."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import cockpit_core
from cockpit_core.commands import cli
from tests.core.comparing.compare_cases import story, write_pair, write_run


def test_the_first_difference_is_named_before_its_consequence(tmp_path: Path) -> None:
    (section,) = cockpit_core.compare(write_pair(tmp_path)).sections
    (pair,) = section.pairs
    assert (pair.first, pair.second) == ("Adam lr=0.001", "SGD lr=0.1")
    found = {d.quantity: d for d in pair.differences}
    assert [d.quantity for d in pair.differences][:2] == ["UpdateSize", "update / weight"]
    assert 36 <= found["UpdateSize"].step <= 45
    assert found["UpdateSize"].ratio == pytest.approx(3, rel=0.1)
    assert 200 < found["Loss"].step < 240
    assert "GradNorm" in pair.alike
    assert "signal share" in pair.alike


def test_the_text_says_who_wins_when_and_what_came_first(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    write_pair(tmp_path)
    assert cli.main(["compare", str(tmp_path), "--target", "valid_accuracy=0.7"]) == 0
    text = capsys.readouterr().out
    assert "6 runs, 2 settings; valid_accuracy, more is better" in text
    assert text.index("Adam lr=0.001") < text.index("SGD lr=0.1")
    assert "steps to 0.7" in text
    assert "> 399" in text or "0 of 3" in text
    assert "3 of 3" in text
    assert "Instruments at equal loss" in text
    assert "The outcome separates at step" in text
    assert "Before it: UpdateSize" in text


def test_steps_and_seconds_to_the_target_are_those_of_the_log(tmp_path: Path) -> None:
    comparison = cockpit_core.compare(write_pair(tmp_path), target="valid_accuracy=0.7")
    (section,) = comparison.sections
    best = section.scores["Adam lr=0.001"][0]
    assert best.steps_to_target == 309  # accuracy is logged at 9, 19, ...; t / 600 + 0.2 >= 0.7 from 300 on
    assert best.seconds_to_target == pytest.approx(3.09)
    assert best.final == pytest.approx(399 / 600 + 0.2)
    assert all(math.isinf(score.steps_to_target) for score in section.scores["SGD lr=0.1"])
    assert section.scores["SGD lr=0.1"][0].final == pytest.approx(399 / 600)


@pytest.mark.parametrize("seeds", [1, 3])
def test_two_halves_of_one_setting_show_no_difference(tmp_path: Path, seeds: int) -> None:
    """The same process on both sides, with noise that is correlated in time and an offset for every seed."""

    def draw(steps: np.ndarray, random: np.random.Generator) -> dict[str, np.ndarray]:
        names = ("Loss", "GradNorm", "UpdateSize", "ParamNorm", "NormTest", "Alpha", "HessMaxEV", "Distance")
        found = {}
        for name in names:
            drift = np.cumsum(random.normal(0, 0.02, len(steps))) if seeds > 1 else np.zeros(len(steps))
            found[name] = np.exp(drift + random.normal(0, 0.1, len(steps)))
        return found

    wrong = []
    for repeat in range(3):
        runs = []
        for index, name in enumerate(("a", "b")):
            for s in range(seeds):
                path = tmp_path / f"{repeat}{name}{s}"
                runs.append(
                    write_run(path, draw, seed=s + 10 * index + 100 * repeat, options={"side": name}, steps=range(200))
                )
        ((pair,),) = [section.pairs for section in cockpit_core.compare(runs).sections]
        wrong += [(repeat, d.quantity, d.step) for d in pair.differences]
    assert len(wrong) <= 1, wrong


def test_different_schedules_are_read_at_the_coarser_steps(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / f"a{s}", story(), optimizer="Adam", seed=s) for s in range(3)]
    runs += [
        write_run(tmp_path / f"b{s}", story(stronger=1.0), seed=s, steps=range(0, 400, 7), schedule="every 7 steps")
        for s in range(3)
    ]
    (section,) = cockpit_core.compare(runs).sections
    first = section.pairs[0].differences[0]
    assert first.quantity in ("UpdateSize", "update / weight")
    assert 35 <= first.step <= 49
    assert any("tracked at different steps" in note for note in section.notes)


def test_lengths_versions_and_missing_quantities_are_said(tmp_path: Path) -> None:
    def less(steps: np.ndarray, random: np.random.Generator) -> dict[str, np.ndarray]:
        return {k: v for k, v in story()(steps, random).items() if k != "GradNorm"}

    runs = [
        write_run(tmp_path / "a", story(), optimizer="Adam"),
        write_run(tmp_path / "b", less, steps=range(150), versions={"cockpit": "0.0.9"}, end=""),
    ]
    (section,) = cockpit_core.compare(runs).sections
    notes = " | ".join(section.notes)
    assert "shorter than the longest (step 399)" in notes
    assert "different versions of cockpit: 0.0.9, 0.1.0" in notes
    assert "measured by some settings only, and not compared with the others: GradNorm" in notes
    assert "b is running: its last value is not a final one" in notes
    assert all(d.step < 150 for d in section.pairs[0].differences)


def test_other_networks_and_other_losses_are_not_measured_by_one_ruler(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / "a", story(), optimizer="Adam"),
        write_run(tmp_path / "b", story(stronger=1.0), width=8, loss="MSELoss"),
    ]
    (section,) = cockpit_core.compare(runs).sections
    names = {d.quantity for d in section.pairs[0].differences}
    assert not names & {"UpdateSize", "GradNorm", "Loss"}
    assert "update / weight" in names
    assert section.level is None
    notes = " | ".join(section.notes)
    assert "different networks" in notes
    assert "different loss functions (CrossEntropyLoss, MSELoss)" in notes


def test_quantities_with_other_options_are_not_compared(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, story(), options={"side": name}) for name in ("a", "b")]
    (section,) = cockpit_core.compare(runs).sections
    assert "NormTest" in section.pairs[0].alike
    changed = [cockpit_core.load(run) for run in runs]
    for data, epsilon in zip(changed, ("1e-5", "1e-3"), strict=True):
        data.header.quantities[4].options["epsilon"] = epsilon
    (section,) = cockpit_core.compare(changed).sections
    assert "NormTest" not in section.pairs[0].alike
    assert "NormTest was measured with different options and is not compared" in section.notes


def test_problems_stand_apart(tmp_path: Path) -> None:
    runs = []
    for problem in ("mnist", "cifar"):
        for rate in (0.1, 0.2):
            path = tmp_path / f"{problem}{rate}"
            runs.append(write_run(path, story(), lr=rate, options={"problem": problem}))
    comparison = cockpit_core.compare(runs)
    assert [section.problem for section in comparison.sections] == ["mnist", "cifar"]
    assert [s.name for s in comparison.sections[0].settings] == ["lr=0.1", "lr=0.2"] or len(
        comparison.sections[0].settings
    ) == 2
    assert "runs of different problems (mnist, cifar) are not compared with each other" in comparison.notes


def write_problems(folder: Path) -> Path:
    """Adam reaches 0.5 at half of SGD's steps on two problems, at twice as many on the third, and RMSprop never does."""
    for problem, factor in (("one", 0.5), ("two", 0.5), ("three", 2.0)):
        for optimizer, speed in (("Adam", 1 / factor), ("SGD", 1.0), ("RMSprop", 0.0)):
            for seed in range(2):
                options = {"problem": problem, "setting.problem": problem}
                write_run(
                    folder / problem / f"{optimizer}{seed}",
                    story(),
                    optimizer=optimizer,
                    seed=seed,
                    accuracy=lambda t, speed=speed: min(t * speed / 200, 0.9),
                    options=options,
                )
    return folder


def test_performance_profiles_are_shares_of_problems(tmp_path: Path) -> None:
    comparison = cockpit_core.compare(write_problems(tmp_path), target="valid_accuracy=0.5", group="optimizer")
    profiles = comparison.profiles
    assert profiles is not None
    assert profiles.problems == ["one", "three", "two"]
    # accuracies are logged at steps 9, 19, ...
    assert profiles.ratios["Adam"] == pytest.approx({"one": 1, "two": 1, "three": 209 / 109})
    assert profiles.ratios["SGD"] == pytest.approx({"one": 109 / 59, "two": 109 / 59, "three": 1})
    assert set(profiles.ratios["RMSprop"].values()) == {math.inf}
    assert [profiles.share_within("Adam", tau) for tau in (1, 4)] == pytest.approx([2 / 3, 1])
    text = str(comparison)
    assert "Performance profiles over 3 problems" in text
    lines = text[text.index("Performance profiles") :].splitlines()
    assert [line.split()[0] for line in lines[2:5]] == ["Adam", "SGD", "RMSprop"]
    assert comparison.to_dict()["profiles"]["ratios"]["RMSprop"] == {"one": None, "two": None, "three": None}


def test_without_a_target_the_median_setting_sets_it(tmp_path: Path) -> None:
    profiles = cockpit_core.compare(write_problems(tmp_path), group="optimizer").profiles
    assert profiles is not None
    assert profiles.targets["one"] == "valid_accuracy 0.9"
    assert math.isfinite(profiles.ratios["SGD"]["one"])

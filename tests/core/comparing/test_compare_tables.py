"""What ``compare`` gives: levels, tables, words, profiles."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import cockpit_core
from cockpit_core.commands import cli
from cockpit_core.comparing.first import find_first
from cockpit_core.comparing.metrics import parse_target
from tests import synthetic
from tests.core.comparing.compare_cases import Curves, story, write_pair, write_run


def test_one_problem_has_no_profile(tmp_path: Path) -> None:
    assert cockpit_core.compare(write_pair(tmp_path), group="optimizer").profiles is None


def test_instruments_are_compared_at_equal_loss(tmp_path: Path) -> None:
    """One run goes the same way at half the speed: at equal step all differs, at equal loss nothing does."""

    def draw(speed: float) -> Curves:
        def curves(steps: np.ndarray, random: np.random.Generator) -> dict[str, np.ndarray]:
            way = speed * steps / 400
            return {"Loss": 2 * np.exp(-3 * way), "GradNorm": 1 / (1 + way), "NormTest": 0.2 + 0.2 * way}

        return curves

    runs = [write_run(tmp_path / "a", draw(1.0)), write_run(tmp_path / "b", draw(0.5), lr=0.05)]
    level = cockpit_core.compare(runs).sections[0].level
    assert level is not None
    assert level.steps["lr=0.05"] == pytest.approx(2 * level.steps["lr=0.1"], abs=6)
    for name in ("GradNorm", "signal share", "noise scale"):
        assert level.values[name]["lr=0.1"] == pytest.approx(level.values[name]["lr=0.05"], rel=0.03)
    at = -math.log(level.loss / 2) / 3
    assert level.values["signal share"]["lr=0.1"] == pytest.approx(1 - (0.2 + 0.2 * at) ** 2, rel=0.02)
    square = (0.2 + 0.2 * at) ** 2
    assert level.values["noise scale"]["lr=0.1"] == pytest.approx(64 * square / (1 - square), rel=0.05)


def test_sensitivity_is_the_range_of_rates_that_are_as_good_as_the_best(tmp_path: Path) -> None:
    finals = {0.01: 0.5, 0.03: 0.895, 0.1: 0.90, 0.3: 0.893, 1.0: 0.3}
    for rate, final in finals.items():
        write_run(tmp_path / f"{rate}", story(), lr=rate, accuracy=lambda t, final=final: final, steps=range(60))
    (item,) = cockpit_core.compare(tmp_path).sections[0].sensitivity
    assert item.rates == list(finals)
    assert item.finals == pytest.approx(list(finals.values()))
    assert item.best_rate == 0.1
    assert item.width == pytest.approx(10)


def test_a_group_is_represented_by_its_best_setting_and_unequal_trials_are_said(tmp_path: Path) -> None:
    for rate, final in ((0.01, 0.5), (0.1, 0.8)):
        write_run(tmp_path / f"s{rate}", story(), lr=rate, accuracy=lambda t, final=final: final, steps=range(60))
    write_run(tmp_path / "adam", story(), optimizer="Adam", lr=0.001, accuracy=lambda t: 0.7, steps=range(60))
    (section,) = cockpit_core.compare(tmp_path, group="optimizer").sections
    assert [(s.name, s.chosen_from) for s in section.settings] == [("SGD lr=0.1", 2), ("Adam lr=0.001", 1)]
    assert any("unequal numbers of settings" in note for note in section.notes)


def test_a_run_that_ended_as_nan_is_the_worst_and_stops_nothing(tmp_path: Path) -> None:
    def broken(steps: np.ndarray, random: np.random.Generator) -> dict[str, np.ndarray]:
        found = story()(steps, random)
        found["Loss"] = np.where(steps > 50, np.nan, found["Loss"])
        return found

    runs = [
        write_run(tmp_path / "a", story(), accuracy=lambda t: 0.5),
        write_run(tmp_path / "b", broken, lr=9.0, accuracy=lambda t: math.nan),
    ]
    comparison = cockpit_core.compare(runs)
    assert [s.name for s in comparison.sections[0].settings] == ["lr=0.1", "lr=9"]
    assert "b: the loss ended as NaN or infinite" in str(comparison).replace(f"{tmp_path}/", "")
    assert json.dumps(comparison.to_dict(), allow_nan=False)


def test_json_and_pandas_hold_every_run(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    write_pair(tmp_path, seeds=2)
    assert cli.main(["compare", str(tmp_path), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert [row["seed"] for row in content["sections"][0]["runs"]] == ["0", "1", "0", "1"]
    assert content["sections"][0]["first_differences"][0]["differences"][0]["quantity"] == "UpdateSize"
    frame = cockpit_core.compare(tmp_path).to_pandas()
    assert frame.groupby("optimizer")["final"].max()["Adam"] == pytest.approx(399 / 600 + 0.2)


def test_seeds_are_one_row_and_a_run_given_twice_counts_once(tmp_path: Path) -> None:
    runs = write_pair(tmp_path)
    section = cockpit_core.compare([*runs, runs[0], tmp_path]).sections[0]
    assert [len(s.entries) for s in section.settings] == [3, 3]


def test_where_headers_say_the_same_what_the_user_named_is_compared(tmp_path: Path) -> None:
    """A fault in the data is in no header. Folders of runs stand for settings, too."""
    for seed in range(3):
        write_run(tmp_path / "healthy" / f"r{seed}", story(), seed=seed)
        write_run(tmp_path / "broken" / f"r{seed}", story(stronger=1.0), seed=seed + 7)
    (section,) = cockpit_core.compare([tmp_path / "healthy", tmp_path / "broken"]).sections
    assert [len(setting.entries) for setting in section.settings] == [3, 3]
    assert section.pairs[0].differences[0].quantity in ("UpdateSize", "update / weight")
    (section,) = cockpit_core.compare([tmp_path / "healthy" / "r0", tmp_path / "broken" / "r0"]).sections
    assert len(section.settings) == 1, "seeds 0 and 7 are on record: seeds of one setting"


def test_two_runs_without_seeds_on_record_are_compared_with_each_other(tmp_path: Path) -> None:
    for side, curves in (("a", story()), ("b", story(stronger=1.0))):
        write_run(tmp_path / side / "0", curves, seed=0)
    (section,) = cockpit_core.compare([tmp_path / "a" / "0", tmp_path / "b" / "0"]).sections
    assert [len(s.entries) for s in section.settings] == [1, 1]
    assert any("the headers do not differ" in note for note in section.notes)


def test_synthetic_runs_of_the_tests_can_be_compared(tmp_path: Path) -> None:
    for number in range(2):
        synthetic.write_run(tmp_path / f"r{number}", steps=120, seed=number)
    text = str(cockpit_core.compare(tmp_path))
    assert "2 runs, 1 setting" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "no such folder"),
        (["."], "no run here or below"),
        (["RUNS", "--target", "accuracy"], "a target is written name=number"),
        (["RUNS", "--target", "accuracy=0.9"], "no run has values called 'accuracy'; there are"),
        (["RUNS", "--group", "colour"], "no run has a setting called 'colour'; there are"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    if "RUNS" in arguments:
        write_run(tmp_path / "a", story(), steps=range(20))
        arguments = [str(tmp_path / "a"), *arguments[1:]]
    assert cli.main(["compare", *arguments]) == 1
    words = capsys.readouterr().err
    assert message in words
    assert words.count("\n") == 1


def test_a_metric_with_too_few_values_is_not_called_alike(tmp_path: Path) -> None:
    for name, final in (("a", 0.9), ("b", 0.1)):
        for seed in range(3):
            path = tmp_path / f"{name}{seed}"
            write_run(path, story(), seed=seed, options={"side": name}, steps=range(30), accuracy=lambda t, v=final: v)
    (pair,) = cockpit_core.compare(tmp_path).sections[0].pairs
    assert pair.too_few == ["valid_accuracy"]
    assert "Too few values to say: valid_accuracy" in str(cockpit_core.compare(tmp_path))


def test_targets_say_which_way_is_better() -> None:
    assert parse_target("valid_accuracy=0.97").less_is_better is False
    assert parse_target("valid_loss=0.3").less_is_better is True
    assert parse_target("score<=3").less_is_better is True
    assert parse_target("log/loss>=1e-3") == parse_target("loss>=0.001")


def test_a_separation_must_last_and_keep_its_direction() -> None:
    quiet = np.zeros((3, 20)) + np.array([[0.0], [0.1], [-0.1]])
    blip = quiet.copy()
    blip[:, 5:7] += 10
    swing = quiet + 10 * (-1) ** np.arange(20)
    stays = quiet.copy()
    stays[:, 9:] += 1
    assert find_first(blip, quiet, True) is None
    assert find_first(swing, quiet, True) is None
    assert find_first(stays, quiet, True) == 9
    assert find_first(quiet + 0.15, quiet, True) is None


def test_comparing_needs_no_torch(tmp_path: Path) -> None:
    write_run(tmp_path / "a", story(), steps=range(20))
    code = (
        "import sys, cockpit_core\n"
        f"print(cockpit_core.compare({str(tmp_path)!r}))\n"
        "assert not {'torch', 'pandas', 'matplotlib'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_run_whose_header_is_damaged_is_named_and_its_settings_are_not_guessed(tmp_path: Path) -> None:
    for name in ("whole", "headless"):
        write_run(tmp_path / name, story(stronger=1.0))
    file = next((tmp_path / "headless").iterdir())
    content = bytearray(file.read_bytes())
    middle = content.index(b"SGD")  # in the header
    content[middle : middle + 3] = b"???"
    file.write_bytes(content)
    text = str(cockpit_core.compare([tmp_path / "whole", tmp_path / "headless"]))
    assert "headless: its header is lost, so its settings are not known" in text
    assert "parameters=" not in text

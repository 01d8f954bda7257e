"""``compare`` on made-up logs in which it is known what differs, since when, and what must not be compared."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest

import cockpit_core
from cockpit_core.commands import cli
from cockpit_core.comparing.first import find_first
from cockpit_core.comparing.metrics import parse_target
from cockpit_core.events.writer import EventWriter
from cockpit_core.foundation import records
from tests import synthetic

Curves = Callable[[np.ndarray, np.random.Generator], dict[str, np.ndarray]]


def write_run(
    path: Path,
    curves: Curves,
    *,
    optimizer: str = "SGD",
    lr: float = 0.1,
    seed: int = 0,
    steps: Iterable[int] = range(400),
    accuracy: Callable[[float], float] | None = None,
    end: str = "finished",
    width: int = 4,
    loss: str = "CrossEntropyLoss",
    **header: object,
) -> Path:
    """A run with these curves; seconds are a hundredth of the step."""
    at = np.array(list(steps))
    columns = curves(at, np.random.default_rng(seed + 1000 * len(optimizer)))
    options = {"seed": str(seed), "memory_budget": "1", **dict(header.pop("options", {}))}
    groups = [{"lr": f"{lr:g}", "betas": "(0.9, 0.999)"} if optimizer == "Adam" else {"lr": f"{lr:g}", "momentum": "0"}]
    layers = [records.LayerInfo("fc.weight", (width, 3), 3 * width)]
    versions = dict(header.pop("versions", {"cockpit": "0.1.0"}))
    described = records.Header(
        run_id=str(path), name=path.name, created=0.0, model="Net", num_parameters=3 * width, layers=layers, loss=loss,
        optimizers=[records.OptimizerInfo(optimizer, groups)], options=options, batch_size=64, versions=versions,
        quantities=[records.QuantityInfo(name) for name in columns], **header,
    )  # fmt: skip
    with EventWriter(path) as writer:
        writer.write_header(described)
        for number, step in enumerate(at):
            scalars = {name: float(values[number]) for name, values in columns.items()}
            writer.write_record(records.Record("step", int(step), 0.01 * step, 0.01 * step, scalars=scalars))
            if accuracy is not None and number % 10 == 9:
                logged = {"log/valid_accuracy": accuracy(float(step))}
                writer.write_record(records.Record("log", int(step), 0.01 * step, 0.01 * step, scalars=logged))
        if end:
            writer.write_record(records.Record("end", int(at[-1]), 0.01 * at[-1], 0.01 * at[-1], status=end))
    return path


def noisy(random: np.random.Generator, values: np.ndarray, width: float = 0.05) -> np.ndarray:
    return values * random.lognormal(0, width, len(values))


def story(loss_from: int = 200, update_from: int = 40, stronger: float = 3.0) -> Curves:
    """The update is ``stronger`` times as long from one step on, the loss falls faster from a later one on."""

    def draw(steps: np.ndarray, random: np.random.Generator) -> dict[str, np.ndarray]:
        late = np.maximum(steps - loss_from, 0) / 60
        return {
            "Loss": noisy(random, 2.3 * np.exp(-steps / 400 - (late if stronger > 1 else 0)) + 0.05),
            "UpdateSize": noisy(random, np.where(steps >= update_from, 0.1 * stronger, 0.1)),
            "GradNorm": noisy(random, np.full(len(steps), 1.5)),
            "ParamNorm": noisy(random, np.full(len(steps), 10.0), 0.01),
            "NormTest": noisy(random, np.full(len(steps), 0.5)),
        }

    return draw


def write_pair(folder: Path, seeds: int = 3) -> list[Path]:
    """Adam's accuracy runs ahead from step 240 on."""
    runs = []
    for seed in range(seeds):
        options = {"optimizer": "Adam", "lr": 0.001, "seed": seed, "accuracy": lambda t: t / 600 + 0.2 * (t > 240)}
        runs.append(write_run(folder / f"adam{seed}", story(), **options))
        runs.append(write_run(folder / f"sgd{seed}", story(stronger=1.0), seed=seed, accuracy=lambda t: t / 600))
    return runs


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

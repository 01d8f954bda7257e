"""The commands that draw and write: ``cockpit show`` and ``cockpit report``."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from cockpit_core.commands import cli, diagnose
from cockpit_core.foundation.records import Evidence
from cockpit_core.report.findings import describe_evidence
from cockpit_core.report.show import list_runs, show_run
from cockpit_core.report.terminal import Terminal, draw_sparkline, format_age, format_number
from tests import synthetic
from tests.core.commands.cli_cases import HOSTILE, Screen, write_run
from tests.training import start


def test_sparkline_shows_course_gaps_and_decades() -> None:
    terminal = Terminal(Screen())
    assert draw_sparkline([0, 1, 2, 3, 4, 5, 6, 7], terminal) == "▁▂▃▄▅▆▇█"
    assert draw_sparkline([1, float("nan"), 2], terminal) == "▁x█"
    assert draw_sparkline([float("inf")] * 2, terminal) == "xx"
    assert draw_sparkline([5, 5], terminal) == "▁▁"
    assert draw_sparkline([0.1] * 100, terminal, 48) == "▁" * 48  # the mean of three 0.1 is not quite 0.1
    assert draw_sparkline([], terminal) == ""
    assert draw_sparkline([1, 10, 100, 1000], terminal) == "▁▃▆█"  # logarithmic: the steps are even
    assert len(draw_sparkline(np.arange(10_000), terminal)) == 32


@pytest.mark.parametrize("columns", [40, 60, 80, 200])
def test_tables_and_sentences_fit_the_terminal(columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    synthetic.write_run(tmp_path / "runs/lenet", steps=60)
    for show in (lambda t: list_runs(tmp_path / "runs", t), lambda t: show_run(tmp_path / "runs/lenet", t)):
        terminal = Terminal(Screen())
        show(terminal)
        text = terminal.stream.getvalue()  # type: ignore[attr-defined]
        widest = max(map(len, text.splitlines()))
        assert widest <= max(columns, 52)  # the numbers themselves are never cut
        assert ("from first to last" in text) == (columns >= 80)
        assert ("█" in text) == (columns >= 60)


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (12.0, "12"), (0.000123456, "0.0001235"), (float("inf"), "inf"), (2e7, "2e+07")]
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert format_number(value) == text


@pytest.mark.parametrize(("seconds", "text"), [(-3, "0 s"), (59, "59 s"), (600, "10 min"), (7200, "2 h"), (2e5, "2 d")])
def test_ages_are_short(seconds: float, text: str) -> None:
    assert format_age(seconds) == text


def test_report_goes_where_the_option_or_the_ending_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(tmp_path / "a", [2.0, 0.5])
    monkeypatch.chdir(tmp_path)
    assert cli.main(["report", str(run), "-o", "numbers.csv"]) == 0
    assert re.search(r"numbers\.csv  [1-9]\d* kB\n", capsys.readouterr().out)  # not "0.0 MB"
    assert "0.5" in (tmp_path / "numbers.csv").read_text()
    assert cli.main(["report", str(run), "--format", "json"]) == 0
    assert (tmp_path / "a.json").exists()
    assert "a.json" in capsys.readouterr().out
    assert cli.main(["report", str(run), "-o", "nowhere/a.html"]) == 1
    assert "nowhere: no such folder" in capsys.readouterr().err


def test_report_takes_a_folder_of_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cockpit_core.report.html.read_program", lambda: "// the program")
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b", "c"):
        synthetic.write_run(tmp_path / "sweep" / name, steps=5, layers=2)
    assert cli.main(["report", "sweep/"]) == 0
    assert "sweep.html" in capsys.readouterr().out
    page = (tmp_path / "sweep.html").read_text()
    assert page.count('class="cockpit-batch"') == 3


def test_report_says_how_large_it_is_and_what_it_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cockpit_core.report.html.read_program", lambda: "// the program")
    synthetic.write_run(tmp_path / "lenet", steps=150, layers=6)
    command = ["report", str(tmp_path / "lenet"), "-o", str(tmp_path / "lenet.html")]
    assert cli.main(command) == 0
    shown = capsys.readouterr()
    assert re.search(r"lenet\.html  \d\.\d MB, nothing left out\n", shown.out)
    assert shown.err == ""
    assert cli.main([*command, "--max-size", "0.25"]) == 0
    shown = capsys.readouterr()
    assert "left out" not in shown.out
    told = re.search(r"(\d+) of (\d+) histograms are left out: GradHist1d is kept at all 15 steps", shown.err)
    assert told
    assert 0 < int(told[1]) < int(told[2]) == 2 * 15 * 7
    assert (tmp_path / "lenet.html").stat().st_size <= 250_000
    assert cli.main([*command, "--max-size", "0.001"]) == 1
    assert "needs at least" in capsys.readouterr().err


@pytest.mark.parametrize("columns", [70, 80, 200])
def test_no_line_of_a_table_wraps(columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Screen(io.StringIO):
        encoding = "utf-8"

        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    synthetic.write_run(tmp_path / "lenet", steps=120, layers=4, warnings=False)
    screen = Screen()
    assert list_runs(tmp_path, Terminal(screen)) == 1
    show_run(tmp_path / "lenet", Terminal(screen))
    show_run(tmp_path / "lenet", Terminal(screen), "GradNorm")
    lines = screen.getvalue().splitlines()
    curves = [line for line in lines if "▁" in line]
    assert len(curves) > 20
    assert max(map(len, curves)) <= columns
    assert max(map(len, curves)) > min(columns, 100) - 12  # and the room is used


def test_show_says_why_a_quantity_has_no_value(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    training = start("mlp")
    with training.track(tmp_path / "run", config=["Loss", "NormTest"], on_error="warn"):
        training.run([(inputs[:1], targets[:1]) for inputs, targets in training.batches(2)])
    assert cli.main(["show", str(tmp_path / "run")]) == 0
    assert "NormTest has no value at 2 steps: a batch of one sample has no variance" in capsys.readouterr().out


def test_picture_without_its_package_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    path = write_run(tmp_path / "run", [2.0, 1.0])
    assert cli.main(["report", str(path), "--format", "png", "-o", str(tmp_path / "x.png")]) != 0
    told = capsys.readouterr().err
    assert "pip install 'torch-cockpit[poster]'" in told
    assert len(told.strip().splitlines()) == 1


def test_report_with_an_ending_that_is_no_format_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run", [1.0])
    assert cli.main(["report", str(run), "-o", str(tmp_path / "x.pdf")]) == 1
    assert "cannot be written as .pdf; choose one of .html, .csv, .json, .png, .svg" in capsys.readouterr().err
    assert not (tmp_path / "x.pdf").exists()
    for name in ("lr-0.1", "plain"):
        assert cli.choose_target(name, None, [run]) == (Path(name), "html")
    assert cli.choose_target("x.pdf", "csv", [run]) == (Path("x.pdf"), "csv")
    assert cli.choose_target("x.htm", None, [run])[1] == "html"


def test_no_name_reaches_the_terminal_with_its_escape_sequences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names of folders and of runs: in answers, in errors, in what a report left out."""
    monkeypatch.setattr("cockpit_core.report.html.read_program", lambda: "")
    monkeypatch.chdir(tmp_path)
    run = write_run(tmp_path / HOSTILE / HOSTILE, [1.0], name=HOSTILE, end=HOSTILE, error=HOSTILE)
    write_run(tmp_path / HOSTILE / "other", [], name=HOSTILE)
    (tmp_path / f"empty{HOSTILE}").mkdir()
    parent, empty = str(run.parent), str(tmp_path / f"empty{HOSTILE}")
    for words in (
        ["ls", parent],
        ["show", str(run)],
        ["show", str(run), HOSTILE],
        ["show", parent],
        ["show", empty],
        ["ls", HOSTILE + HOSTILE],
        ["report", str(run)],
        ["report", str(run), "-o", f"x.{HOSTILE}"],
        ["report", f"{parent}/other", "--max-size", "0.2", "-o", HOSTILE],
        ["report", str(run), "-o", f"{empty}/no/x.html"],
    ):
        cli.main(words)
        output = capsys.readouterr()
        for text in (output.out, output.err):
            assert text.replace("\n", "").isprintable(), (words, text)


def test_evidence_names_its_layer_behind_the_number() -> None:
    """ "units that answer to no sample of out: 0.875" was read as samples of something called out."""
    evidence = Evidence("dead", 0.875, low=0.0, high=0.5, layer="out", text="units that answer to no sample")
    assert describe_evidence(evidence) == "units that answer to no sample: 0.875 in out; healthy 0 to 0.5"


@pytest.mark.parametrize(("early", "words"), [(["a"], "1 diagnosis"), (["a", "b"], "2 diagnoses")])
def test_one_diagnosis_is_one(monkeypatch: pytest.MonkeyPatch, early: list[str], words: str) -> None:
    monkeypatch.setattr(diagnose, "find_early", lambda judge: dict.fromkeys(early, ""))
    history = SimpleNamespace(count=17, late=[SimpleNamespace(step=397)], resumed=False)
    lines = diagnose.describe_gaps(SimpleNamespace(history=history, not_examined=dict, failed={}), 0)
    assert lines == [f"too early for {words}: 17 tracked steps, the last is step 397"]

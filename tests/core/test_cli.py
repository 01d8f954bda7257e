"""The ``cockpit`` command, as a shell sees it: what it prints, where, and with which exit code."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from cockpit_core._version import __version__
from cockpit_core.commands import cli
from cockpit_core.events.writer import EventWriter
from cockpit_core.foundation.records import Header, LayerInfo, Notice, Record
from cockpit_core.report.show import list_runs, show_run
from cockpit_core.report.terminal import Terminal, draw_sparkline, format_age, format_number
from tests import synthetic
from tests.training import start

HOSTILE = "evil\x1b[31m\x07name"


def write_run(path: Path, losses: list[float], name: str = "", end: str = "finished", error: str = "") -> Path:
    writer = EventWriter(path)
    layers = [LayerInfo("fc.weight", (2, 3), 6), LayerInfo(HOSTILE, (2,), 2)]
    writer.write_header(Header(run_id="1", name=name or path.name, created=time.time(), model="Net", layers=layers))
    for step, loss in enumerate(losses):
        writer.write_record(
            Record(
                kind="step",
                step=step,
                wall_time=time.time(),
                time=float(step),
                scalars={"Loss": loss, "GradNorm": loss / 2},
                layers={"GradNorm": np.array([loss, 2 * loss])},
                costs={"step": 0.1},
            )
        )
    if end:
        notices = [Notice(step=1, kind="note", message=f"look at {HOSTILE}")]
        writer.write_record(
            Record(
                kind="end",
                step=len(losses),
                wall_time=time.time(),
                time=9.0,
                status=end,
                error=error,
                notices=notices,
            )
        )
    writer.close()
    return path


def run_cockpit(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-m", "cockpit_core.commands.cli", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, encoding="utf-8", timeout=120, env={**os.environ, **environment}
    )


def test_version_is_the_one_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out.strip() == f"cockpit {__version__}"


def test_no_command_is_an_error_that_names_all_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    words = capsys.readouterr().err
    assert "usage: cockpit" in words
    assert all(re.search(rf"^ +{name} +\w", words, re.MULTILINE) for name in ("demo", "ls", "show", "report"))


def test_ls_lists_every_run_with_state_step_and_loss(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "a", [2.0, 0.5])
    write_run(tmp_path / "deep" / "b", [2.0, 1.0, float("nan")], end="failed", error="ValueError: no")
    write_run(tmp_path / "c", [3.0], end="")
    assert cli.main(["ls", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:4] for line in lines[1:]] == [
        ["a", "finished", "1", "0.5"],
        ["c", "running", "0", "3"],
        [str(Path("deep/b")), "failed", "2", "nan"],
    ]


def test_ls_of_a_folder_without_runs_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ls", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "no run here or below" in captured.err
    assert "cockpit_core.track(" in captured.err
    assert "cockpit demo" in captured.err


def test_a_missing_folder_is_one_line_not_a_traceback(tmp_path: Path) -> None:
    for command in ("ls", "show", "report"):
        result = run_cockpit(command, str(tmp_path / "nothing"))
        assert result.returncode == 1
        assert result.stderr.startswith(f"cockpit: {tmp_path / 'nothing'}: no such folder")
        assert result.stderr.count("\n") == 1
        assert ("cockpit demo" in result.stderr) == (command == "ls")  # its default folder exists after the first run


@pytest.mark.parametrize("command", ["show", "report"])
def test_a_folder_without_a_run_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert cli.main([command, str(tmp_path)]) == 1
    words = capsys.readouterr().err
    assert f"cockpit ls {tmp_path.parent}" in words
    assert "cockpit_core.track(" in words


def test_a_run_without_a_record_is_no_error_but_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "a", [], end="")
    assert cli.main(["show", "a"]) == 0
    assert "no values yet; they come with the first optimizer step" in capsys.readouterr().out
    assert cli.main(["report", "a"]) == 0
    assert "a has no values yet" in capsys.readouterr().err


def test_show_prints_last_lowest_and_highest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "a", [2.0, 0.25, 0.5])
    assert cli.main(["show", str(tmp_path / "a")]) == 0
    out = capsys.readouterr().out
    row = next(line for line in out.splitlines() if line.startswith("Loss"))
    assert row.split()[:5] == ["Loss", "0.5", "0.25", "2", "3"]
    assert "cost/" not in out


def test_show_with_a_quantity_prints_one_line_per_layer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "a", [2.0, 0.5])
    assert cli.main(["show", str(tmp_path / "a"), "GradNorm"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert next(line for line in lines if line.startswith("fc.weight")).split()[1] == "0.5"
    assert next(line for line in lines if line.startswith("network")).split()[1] == "0.25"


def test_show_of_an_unknown_quantity_names_those_there_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "a", [2.0])
    cli.main(["show", str(tmp_path / "a"), "Nonsense"])
    assert "no values of Nonsense yet; there are Loss, GradNorm" in capsys.readouterr().out


def test_the_error_of_a_failed_run_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "a", [2.0], end="failed", error="ValueError: it broke")
    cli.main(["show", str(tmp_path / "a")])
    assert "ValueError: it broke" in capsys.readouterr().out


def test_names_from_a_file_cannot_control_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "a", [2.0, 1.0], name=HOSTILE, error=HOSTILE, end="failed")
    cli.main(["ls", str(tmp_path)])
    cli.main(["show", str(tmp_path / "a")])
    cli.main(["show", str(tmp_path / "a"), "GradNorm"])
    out = capsys.readouterr().out
    assert "evil?[31m?name" in out
    assert "\x1b" not in out
    assert "\x07" not in out


def test_a_folder_with_one_run_below_means_that_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "a", [2.0])
    assert cli.main(["show", str(tmp_path)]) == 0
    write_run(tmp_path / "b", [2.0])
    assert cli.main(["show", str(tmp_path)]) == 1
    assert "holds several runs; choose one" in capsys.readouterr().err


def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [2.0] * 50)
    command = f'"{sys.executable}" -m cockpit_core.commands.cli show "{tmp_path / "a"}"; echo "code $?" >&2'
    result = subprocess.run(["sh", "-c", f"( {command} ) | true"], capture_output=True, text=True, timeout=120)
    assert result.stderr == "code 0\n"


def test_output_survives_a_terminal_that_knows_only_ascii(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [2.0, 1.0])
    result = run_cockpit("show", str(tmp_path / "a"), PYTHONIOENCODING="ascii")
    assert result.returncode == 0, result.stderr
    assert "#" in result.stdout


class Screen(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_colour_only_on_a_terminal_that_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert Terminal(Screen()).paint("x", "failed") == "\x1b[31mx\x1b[0m"
    assert Terminal(io.StringIO()).paint("x", "failed") == "x"
    monkeypatch.setenv("NO_COLOR", "1")
    assert Terminal(Screen()).paint("x", "failed") == "x"


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

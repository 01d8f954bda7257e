"""The ``cockpit`` command, as a shell sees it: what it prints, where, and with which exit code."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cockpit_core._version import __version__
from cockpit_core.commands import cli
from cockpit_core.report.terminal import Terminal
from tests.core.commands.cli_cases import HOSTILE, Screen, write_run


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


def test_colour_only_on_a_terminal_that_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert Terminal(Screen()).paint("x", "failed") == "\x1b[31mx\x1b[0m"
    assert Terminal(io.StringIO()).paint("x", "failed") == "x"
    monkeypatch.setenv("NO_COLOR", "1")
    assert Terminal(Screen()).paint("x", "failed") == "x"

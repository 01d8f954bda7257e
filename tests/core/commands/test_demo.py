"""``cockpit demo``: the first thing a newcomer runs."""

from __future__ import annotations

import io
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch

import cockpit_core
from cockpit_core import quantities
from cockpit_core.commands.demo import Progress, choose_logdir, run_demo


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_demo_writes_a_run_in_which_every_instrument_has_something_to_show(tmp_path: Path) -> None:
    out, threads = io.StringIO(), torch.get_num_threads()
    logdir = run_demo(tmp_path / "digits", steps=8, stream=out)
    data = cockpit_core.load(logdir)
    wanted = {quantity.name for quantity in quantities.configuration("full")} | {"CABS", "EarlyStopping", "MeanGSNR"}
    assert wanted <= set(data.names)
    assert {"log/train_accuracy", "log/valid_accuracy"} <= set(data.names)
    assert data.status == "finished"
    assert [notice for notice in data.notices if notice.kind == "error"] == []
    assert torch.get_num_threads() == threads
    assert f"The log is in {logdir}." in out.getvalue()


def test_the_network_of_the_demo_learns(tmp_path: Path) -> None:
    data = cockpit_core.load(run_demo(tmp_path / "digits", steps=60, fast=True, stream=io.StringIO()))
    accuracy = data.scalars("valid_accuracy")[1]
    assert accuracy[-1] > 0.8
    assert np.isfinite(data.scalars("Loss")[1]).all()


def test_the_commands_of_the_summary_can_be_typed_as_they_stand(tmp_path: Path) -> None:
    out = io.StringIO()
    logdir = run_demo(tmp_path / "runs" / "digits", steps=2, fast=True, stream=out)
    lines = {line.split()[0]: line for line in out.getvalue().splitlines() if line.startswith("  ")}
    tensorboard = shlex.split(lines["TensorBoard"])
    assert Path(tensorboard[1]).name == "tensorboard"
    assert tensorboard[2:4] == ["--logdir", str(logdir.parent)]
    assert shlex.split(lines["terminal"])[-2:] == ["show", str(logdir)]
    assert f"CockpitWidget({str(logdir)!r})" in out.getvalue()


def test_demo_never_overwrites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert choose_logdir() == Path("runs/digits")
    (tmp_path / "runs" / "digits").mkdir(parents=True)
    assert choose_logdir() == Path("runs/digits-2")


def test_progress_stays_on_one_line_of_a_terminal() -> None:
    screen = Screen()
    progress = Progress(20, screen)
    for step in range(1, 21):
        progress.show(step, 0.5, 0.9, 0.3)
    progress.close()
    assert screen.getvalue().count("\n") == 1
    assert screen.getvalue().count("\r") == 20


def test_progress_into_a_file_is_ten_lines() -> None:
    pipe = io.StringIO()
    progress = Progress(200, pipe)
    for step in range(1, 201):
        progress.show(step, 0.5, 0.9, 0.3)
    progress.close()
    assert "\r" not in pipe.getvalue()
    assert len(pipe.getvalue().splitlines()) == 10

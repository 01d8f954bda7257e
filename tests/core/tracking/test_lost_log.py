"""A log that disappears while it is written, and a disk that is full: training goes on, and what can be kept is kept."""

from __future__ import annotations

import errno
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

import cockpit_core
from cockpit_core.events import logfile
from tests.training import Training, by_step, start


def delete_file(logdir: Path) -> None:
    for path in logdir.glob("events*"):
        path.unlink()


def delete_folder(logdir: Path) -> None:
    shutil.rmtree(logdir)


def cut_off(logdir: Path) -> None:
    for path in logdir.glob("events*"):
        path.write_bytes(b"")


def put_another_in_its_place(logdir: Path) -> None:
    for path in logdir.glob("events*"):
        (logdir / "copy").write_bytes(path.read_bytes())
        os.replace(logdir / "copy", path)


@pytest.mark.parametrize("harm", [delete_file, delete_folder, cut_off, put_another_in_its_place])
def test_log_that_disappears_goes_on_in_a_new_file(harm: Callable[[Path], None], tmp_path: Path) -> None:
    training = start("mlp")
    batches = list(training.batches(9))
    with training.track(tmp_path / "run", config="economy"):
        training.run(batches[:3])
        harm(tmp_path / "run")
        with pytest.warns(
            UserWarning, match=r"events\.out.* was (deleted|cut off) while it was written; what follows is"
        ):
            training.run(batches[3:5])
        harm(tmp_path / "run")
        with warnings.catch_warnings():  # said once
            warnings.simplefilter("error")
            training.run(batches[5:])
    data = cockpit_core.load(tmp_path / "run")
    kept = [0, 1, 2, 3, 4] if harm is put_another_in_its_place else []
    assert list(by_step(data, "Loss")) == [*kept, 5, 6, 7, 8]
    assert data.histogram_steps("GradHist1d") == [*kept, 5, 6, 7, 8]
    assert data.layers == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert data.status == "finished"
    if not kept:
        assert data.received < data.expected, "it can be seen that something is missing"
    assert "log" in {notice.quantity for notice in data.notices if notice.kind == "error"}


def test_log_whose_folder_is_moved_is_written_on_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logfile, "LOOK_EVERY", 0.0)
    training = start("mlp")
    batches = list(training.batches(6))
    with training.track(tmp_path / "run", config="economy"):
        training.run(batches[:3])
        (tmp_path / "run").rename(tmp_path / "elsewhere")
        with pytest.warns(UserWarning, match="was moved to .*elsewhere.*; what follows is written there"):
            training.run(batches[3:])
    assert list(by_step(cockpit_core.load(tmp_path / "elsewhere"), "Loss")) == [0, 1, 2, 3, 4, 5]
    assert not (tmp_path / "run").exists()


def test_place_that_cannot_be_written_any_more_ends_no_training(tmp_path: Path) -> None:
    training, twin = start("mlp"), start("mlp")
    batches = list(training.batches(6))
    with training.track(tmp_path / "run", config="economy", on_error="warn") as run:
        training.run(batches[:3])
        shutil.rmtree(tmp_path / "run")
        (tmp_path / "run").write_text("a file in the way")
        with pytest.warns(UserWarning, match="training goes on"):
            training.run(batches[3:5])
        with pytest.warns(UserWarning, match=r"run\.log failed and is skipped"):
            run.log(x=1)
        (tmp_path / "run").unlink()
        with pytest.warns(UserWarning, match="was deleted while it was written"):
            training.run(batches[5:])
    twin.run(batches)
    assert list(by_step(cockpit_core.load(tmp_path / "run"), "Loss")) == [5]
    assert all((a == b).all() for a, b in zip(training.model.parameters(), twin.model.parameters(), strict=True))


def test_other_run_in_the_place_of_a_deleted_one_is_left_alone(tmp_path: Path) -> None:
    training, other = start("mlp"), start("mlp")
    batches = list(training.batches(4))
    with training.track(tmp_path / "run", config="economy", on_error="warn"):
        training.run(batches[:1])
        shutil.rmtree(tmp_path / "run")
        with other.track(tmp_path / "run", config="economy"):
            other.run(batches[:2])
            with pytest.warns(UserWarning, match="another run is in its place"):
                training.run(batches[1:])
            other.run(batches[2:])
    assert len(list((tmp_path / "run").glob("events*"))) == 1
    assert list(by_step(cockpit_core.load(tmp_path / "run"), "Loss")) == [0, 1, 2, 3]


def fill_disk(run: cockpit_core.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(logfile.os, "write", fail)


def train_a_step(training: Training) -> None:
    training.run(training.batches(1))


@pytest.mark.parametrize("act", [lambda run, training: run.log(x=1), lambda run, training: train_a_step(training)])
def test_full_disk_is_a_warning(act: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = start("mlp")
    with training.track(tmp_path / "run", config="economy", on_error="warn") as run:
        train_a_step(training)
        with monkeypatch.context() as patch:
            fill_disk(run, patch)
            with pytest.warns(UserWarning, match="No space left on device"):
                act(run, training)
        run.log(x=2)
        train_a_step(training)
    data = cockpit_core.load(tmp_path / "run")
    assert data.scalars("x")[1].tolist() == [2.0]
    assert any("No space left" in notice.message for notice in data.notices)
    assert data.status == "finished"


def test_full_disk_at_the_beginning_is_an_error_that_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = start("mlp")
    with monkeypatch.context() as patch:
        fill_disk(None, patch)
        with pytest.raises(OSError, match="No space left"):
            training.track(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
    with training.track(tmp_path / "run") as run:
        train_a_step(training)
    assert list(by_step(run.data, "Loss")) == [0]

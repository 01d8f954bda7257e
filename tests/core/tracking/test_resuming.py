"""Going on with a run: at which step, from which start, and never beside a writer that still lives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import cockpit_core
from cockpit_core.events import logfile, writer
from cockpit_core.events.writer import EventWriter
from cockpit_core.tracking import start as start_module
from tests.training import Training, by_step, quantities, start

# ---- a writer that lives ---------------------------------------------------------------------------------------------

WRITER = """
import sys
from cockpit_core.events.writer import EventWriter
writer = EventWriter(sys.argv[1])
{more}
print("writes", flush=True)
sys.stdin.read()
"""


def start_writer(logdir: Path, more: str = "") -> subprocess.Popen:
    command = [sys.executable, "-c", WRITER.format(more=more), str(logdir)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "writes\n"
    return process


def test_run_of_a_living_process_cannot_be_resumed(tmp_path: Path) -> None:
    process = start_writer(tmp_path / "run")
    training = start("mlp")
    before = sorted(os.listdir(tmp_path / "run"))
    with pytest.raises(BlockingIOError, match=f"process {process.pid} on .*end it before you resume"):
        training.track(tmp_path / "run", resume=True)
    assert sorted(os.listdir(tmp_path / "run")) == before
    process.kill()
    process.communicate()
    with training.track(tmp_path / "run", resume=True) as run:  # a dead writer blocks nobody
        training.run(training.batches(2))
    assert list(by_step(run.data, "Loss")) == [0, 1]


def test_children_of_a_dead_writer_do_not_block(tmp_path: Path) -> None:
    """Workers that were forked (of a DataLoader) hold its files, and with them the lock, until they notice."""
    child = (
        "import os, time\nchild = os.fork()\nif child == 0: time.sleep(60)\nprint(child, file=sys.stderr, flush=True)"
    )
    command = [sys.executable, "-c", WRITER.format(more=child), str(tmp_path / "run")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        assert process.stdout.readline() == "writes\n"
        orphan = int(process.stderr.readline())
        try:
            (path,) = (tmp_path / "run").iterdir()
            assert logfile.find_sign_of_life(path) == "locked"
            process.kill()
            process.wait()
            EventWriter(tmp_path / "run", resume=True).close()
        finally:
            os.kill(orphan, signal.SIGKILL)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # the test runner has threads
def test_children_of_a_closed_writer_do_not_block(tmp_path: Path) -> None:
    log = EventWriter(tmp_path / "run")
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    try:
        log.close()
        EventWriter(tmp_path / "run", resume=True).close()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_child_that_ends_does_not_unlock(tmp_path: Path) -> None:
    with EventWriter(tmp_path / "run") as log:
        child = os.fork()
        if child == 0:
            log.close()
            os._exit(0)
        os.waitpid(child, 0)
        assert logfile.find_sign_of_life(log.path) == "locked"


def test_run_of_this_process_has_to_be_closed_first(tmp_path: Path) -> None:
    training, other = start("mlp"), start("mlp")
    with training.track(tmp_path / "run") as run:
        with pytest.raises(BlockingIOError, match=r"call close\(\) on that run first"):
            other.track(tmp_path / "run", resume=True)
        training.run(training.batches(1))
    assert list(by_step(run.data, "Loss")) == [0]


def test_run_that_nobody_holds_any_more_does_not_block(tmp_path: Path) -> None:
    def forget() -> None:
        training = start("mlp")
        training.track(tmp_path / "run")
        training.run(training.batches(2))

    forget()
    training = start("mlp")
    with training.track(tmp_path / "run", resume=True) as run:
        training.run(training.batches(1))
    assert list(by_step(run.data, "Loss")) == [0, 1, 2]


def test_where_there_are_no_locks_a_recent_file_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logfile, "lock", lambda descriptor: None)
    monkeypatch.setattr(logfile, "is_gone", lambda path: False)
    monkeypatch.setattr(logfile, "writer_of", lambda path: ("elsewhere", 1))
    training = start("mlp")
    with training.track(tmp_path / "run"):
        training.run(training.batches(1))
    with training.track(tmp_path / "run", resume=True):  # it says that it has ended
        training.run(training.batches(1))
    path = max((tmp_path / "run").glob("events*"))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.warns(UserWarning, match="was written to a moment ago"):
        training.track(tmp_path / "run", resume=True).close()


def test_two_that_start_at_the_same_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both saw an empty folder: the one that finds the other there gives up, and leaves nothing."""
    with EventWriter(tmp_path / "run") as first:
        seen = iter([[], [first.path]])
        monkeypatch.setattr(writer, "find_event_files", lambda folder: next(seen))
        monkeypatch.setattr(writer, "make_name", lambda stamp, generation: "events.out.tfevents.2.b.1.0.cockpit")
        with pytest.raises(BlockingIOError, match="still being written"):
            EventWriter(tmp_path / "run")
        assert list((tmp_path / "run").iterdir()) == [first.path]


def test_run_that_cannot_begin_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise BlockingIOError("somebody came first")

    monkeypatch.setattr("cockpit_core.events.writer.check_nobody_came_first", fail)
    with pytest.raises(BlockingIOError):
        start("mlp").track(tmp_path / "deep" / "run")
    assert list(tmp_path.iterdir()) == []


# ---- at which step ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ends", ["closed", "killed"])
def test_run_that_did_no_step_is_resumed_at_its_first(
    ends: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = start("mlp")
    run = training.track(tmp_path / "run")
    run.log(note=1)
    if ends == "killed":
        run._writer.close()
        monkeypatch.setattr(run._writer, "write_record", lambda record: 0)
    run.close()
    with training.track(tmp_path / "run", resume=True) as again:
        training.run(training.batches(2))
    assert list(by_step(again.data, "Loss")) == [0, 1]


def test_steps_between_two_records_count_when_the_run_was_closed(tmp_path: Path) -> None:
    training = start("mlp")
    with training.track(tmp_path / "run", schedule=10):
        training.run(training.batches(17))
    with training.track(tmp_path / "run", schedule=10, resume=True) as run:
        training.run(training.batches(4))
    assert list(by_step(run.data, "Loss")) == [0, 10, 20]


# ---- from which start ------------------------------------------------------------------------------------------------


def train_in_parts(tmp_path: Path, **options: object) -> tuple[cockpit_core.RunData, cockpit_core.RunData]:
    training, whole = start("mlp", "adam"), start("mlp", "adam")
    batches = list(training.batches(6))
    config = quantities("Distance", "Loss")
    with training.track(tmp_path / "parts", config=config, **options):
        training.run(batches[:3])
    with training.track(tmp_path / "parts", config=config, resume=True, **options) as parts:
        training.run(batches[3:])
    with whole.track(tmp_path / "whole", config=config) as run:
        whole.run(batches)
    return parts.data, run.data


def test_distance_is_measured_from_the_first_start_after_a_resume(tmp_path: Path) -> None:
    parts, whole = train_in_parts(tmp_path)
    assert by_step(parts, "Distance") == by_step(whole, "Distance")
    for layer in whole.layers:
        assert by_step(parts, "Distance", layer) == by_step(whole, "Distance", layer)
    assert whole.header.options["start kept"] == "yes"


def test_start_that_is_too_large_to_keep_leaves_no_distance_after_a_resume(tmp_path: Path) -> None:
    parts, _ = train_in_parts(tmp_path, keep_start=100)
    assert list(by_step(parts, "Distance")) == [0, 1, 2]
    assert list(by_step(parts, "Loss")) == [0, 1, 2, 3, 4, 5]
    reasons = {missing.reason for missing in parts.missing if missing.name == "Distance"}
    assert reasons == {
        "the parameters at the beginning of this run were not kept (see keep_start of track), so it is not known how far "
        "they have come"
    }
    first = cockpit_core.load(tmp_path / "parts").header.options
    assert "start kept" not in first  # of the resumed run, which has none to keep
    assert not (tmp_path / "parts" / "start.pt").exists()


def first_part(logdir: Path) -> Training:
    training = start("mlp")
    with training.track(logdir, config=quantities("Distance")):
        training.run(training.batches(2))
    return training


def resumed_reason(training: Training, logdir: Path) -> str:
    with training.track(logdir, config=quantities("Distance"), resume=True) as run:
        training.run(training.batches(1))
    assert list(by_step(run.data, "Distance")) == [0, 1]
    return run.data.missing[-1].reason


def test_start_that_is_damaged_is_not_believed(tmp_path: Path) -> None:
    training = first_part(tmp_path / "run")
    path = tmp_path / "run" / "start.pt"
    path.write_bytes(path.read_bytes()[:200])
    assert "start.pt cannot be read" in resumed_reason(training, tmp_path / "run")


def test_start_of_another_run_is_not_believed(tmp_path: Path) -> None:
    training = first_part(tmp_path / "run")
    first_part(tmp_path / "other")
    os.replace(tmp_path / "other" / "start.pt", tmp_path / "run" / "start.pt")
    assert "belongs to another run" in resumed_reason(training, tmp_path / "run")


def test_layer_that_was_not_there_at_the_start_is_named(tmp_path: Path) -> None:
    first_part(tmp_path / "run")
    training = start("mlp")
    training.model[2] = nn.Linear(8, 4, dtype=torch.float64)
    training.model.add_module("3", nn.Linear(4, 4, dtype=torch.float64))
    training.optimizer = torch.optim.SGD(training.model.parameters(), lr=0.1)
    assert resumed_reason(training, tmp_path / "run").startswith("3.weight was not trained, or had another shape")


def test_going_back_to_step_0_is_a_new_start(tmp_path: Path) -> None:
    training = first_part(tmp_path / "run")
    for _ in range(2):  # the second one resumes what the first one began anew
        with training.track(tmp_path / "run", config=quantities("Distance"), resume=True, step=0) as run:
            training.run(training.batches(2))
        assert by_step(run.data, "Distance")[0] == 0.0


def test_full_disk_keeps_no_start_and_breaks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(start_module.torch, "save", fail)
    training = first_part(tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir() if "start" in path.name] == []
    assert "No space left" in cockpit_core.load(tmp_path / "run").header.options["start kept"]
    assert "not kept" in resumed_reason(training, tmp_path / "run")

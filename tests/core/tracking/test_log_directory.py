"""A log directory that cannot be written, already holds a run, is continued, or whose writer is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import cockpit_core
from tests.training import by_step, start


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("below", ["", "deeper/run"])
def test_directory_that_cannot_be_made_is_refused_at_once(below: str, tmp_path: Path) -> None:
    (tmp_path / "occupied").write_text("a file in the way")
    training = start("mlp")
    with pytest.raises(OSError, match="occupied"):
        training.track(tmp_path / "occupied" / below)
    training.run(training.batches(2))  # and nothing was left on the model
    assert (tmp_path / "occupied").read_text() == "a file in the way"


def test_run_that_is_there_is_never_overwritten(tmp_path: Path) -> None:
    training = start("mlp")
    with training.track(tmp_path / "run"):
        training.run(training.batches(2))
    before = bytes_of(tmp_path / "run")
    with pytest.raises(FileExistsError, match="resume=True"):
        training.track(tmp_path / "run")
    training.run(training.batches(2))
    assert bytes_of(tmp_path / "run") == before


def test_default_directories_do_not_collide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(3):
        training = start("mlp")
        with training.track(None):
            training.run(training.batches(1))
    runs = list((tmp_path / "runs").iterdir())
    assert len(runs) == 3
    assert all(list(by_step(cockpit_core.load(run), "Loss")) == [0] for run in runs)


def test_resumed_run_continues_where_the_first_ended(tmp_path: Path) -> None:
    training, whole = start("cnn", "adam"), start("cnn", "adam")
    batches = list(training.batches(6))
    with training.track(tmp_path / "parts", config="full") as first:
        training.run(batches[:3])
    with training.track(tmp_path / "parts", config="full", resume=True) as second:
        training.run(batches[3:])
    with whole.track(tmp_path / "whole", config="full") as run:
        whole.run(batches)
    assert second.data.header.run_id == first.data.header.run_id != run.data.header.run_id
    for name in ("Loss", "GradNorm", "NormTest", "UpdateSize", "HessTrace", "HessMaxEV"):
        assert by_step(second.data, name) == pytest.approx(by_step(run.data, name), rel=1e-3)
    with pytest.raises(FileExistsError):
        training.track(tmp_path / "parts")


def test_resuming_where_there_is_nothing_starts_a_run(tmp_path: Path) -> None:
    training = start("mlp")
    with training.track(tmp_path / "run", resume=True) as run:
        training.run(training.batches(2))
    assert list(by_step(run.data, "Loss")) == [0, 1]


ENDLESS = """
import sys, torch, cockpit_core
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
loss_fn, optimizer = torch.nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1)
run = cockpit_core.track(model, loss_fn, optimizer, sys.argv[1], config="full", resume=len(sys.argv) > 2)
step = 0
while True:
    optimizer.zero_grad()
    loss = loss_fn(model(torch.randn(5, 6)), torch.randint(4, (5,)))
    loss.backward()
    optimizer.step()
    print(step, loss.item(), flush=True)
    step += 1
"""


def train_until_killed(logdir: Path, steps: int, *arguments: str) -> dict[int, float]:
    """What the process said about each step before it was killed without warning."""
    command = [sys.executable, "-c", ENDLESS, str(logdir), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        lines = [process.stdout.readline().split() for _ in range(steps)]
        os.kill(process.pid, signal.SIGKILL)
        lines += [line.split() for line in process.stdout]
    return {int(line[0]): float(line[1]) for line in lines if len(line) == 2}


def test_killed_process_loses_no_step_that_was_finished(tmp_path: Path) -> None:
    said = train_until_killed(tmp_path / "run", 25)
    data = cockpit_core.load(tmp_path / "run")
    losses = by_step(data, "Loss")
    assert len(said) >= 25
    assert {step: losses[step] for step in said} == pytest.approx(said, rel=1e-6)
    assert len(losses) - len(said) <= 1
    assert data.histogram("GradHist2d", 10).counts.sum() == 5 * 92
    assert data.status != "finished"


def test_killed_run_is_resumed(tmp_path: Path) -> None:
    first = len(by_step_after_kill(tmp_path / "run", 10))
    steps = by_step_after_kill(tmp_path / "run", 10, "resume")
    assert list(steps) == list(range(len(steps)))
    assert len(steps) >= first + 10


def by_step_after_kill(logdir: Path, steps: int, *arguments: str) -> dict[int, float]:
    train_until_killed(logdir, steps, *arguments)
    return by_step(cockpit_core.load(logdir), "GradNorm")


def test_run_is_read_while_another_process_writes_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ENDLESS, str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for _ in range(5):
            process.stdout.readline()
        data = cockpit_core.load(tmp_path / "run")
        seen = [len(data.scalars("Loss")[0])]
        deadline = time.monotonic() + 20
        while seen[-1] < seen[0] + 20 and time.monotonic() < deadline:
            process.stdout.readline()
            data.refresh()
            seen.append(len(data.scalars("Loss")[0]))
        process.kill()
    assert seen[0] >= 5
    assert seen[-1] >= seen[0] + 20
    steps, values = data.scalars("Loss")
    assert steps.tolist() == list(range(len(steps)))
    assert np.isfinite(values).all()


def test_status_says_that_the_run_finished(tmp_path: Path) -> None:
    training = start("mlp")
    with training.track(tmp_path / "run"):
        training.run(training.batches(1))
    assert cockpit_core.load(tmp_path / "run").status == "finished"


@pytest.mark.parametrize(("error", "status"), [(RuntimeError("lost"), "failed"), (KeyboardInterrupt(), "stopped")])
def test_status_says_how_the_run_broke_off(error: BaseException, status: str, tmp_path: Path) -> None:
    training = start("mlp")

    def batches_that_break_off() -> Iterator:
        yield from training.batches(1)
        raise error

    with pytest.raises(type(error)) as caught, training.track(tmp_path / "run"):
        training.run(batches_that_break_off())
    assert caught.value is error
    assert cockpit_core.load(tmp_path / "run").status == status


def test_reading_needs_no_model_and_leaves_the_file_alone(tmp_path: Path) -> None:
    training = start("mlp")
    with training.track(tmp_path / "run"):
        training.run(training.batches(2))
    before = bytes_of(tmp_path / "run")
    code = (
        "import sys, cockpit_core; data = cockpit_core.load(sys.argv[1]);"
        "print(data.scalars('Loss')[0].tolist(), 'torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    assert subprocess.check_output(command, text=True).split("\n")[0] == "[0, 1] False"
    assert bytes_of(tmp_path / "run") == before

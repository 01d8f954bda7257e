"""``cockpit sweep`` as a shell sees it: grids, kills, broken runs, bad input."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import cockpit_core
from cockpit_core.commands import cli
from cockpit_core.sweeping.trials import Trial, clear_unfinished, parse_optimizer, space_rates

PROGRAM = "import sys; from cockpit_core.commands.cli import main; sys.exit(main())"


@pytest.fixture(autouse=True)
def own_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``mine:problem`` is one of the user's own; ``mine:Worse`` an optimizer, ``mine:Broken`` one that raises."""
    (tmp_path / "mine.py").write_text(
        "import dataclasses, torch\n"
        "from cockpit_core import problems\n"
        "def problem():\n    return dataclasses.replace(problems.find('digits_mlp'), name='mine', epochs=2)\n"
        "class Worse(torch.optim.SGD):\n    pass\n"
        "class Broken(torch.optim.SGD):\n    def step(self, closure=None):\n        raise RuntimeError('no idea')\n"
        "class Deadly(torch.optim.SGD):\n    def step(self, closure=None):\n        import os\n        os._exit(7)\n"
    )
    monkeypatch.chdir(tmp_path)  # found there, and nowhere else
    monkeypatch.delitem(sys.modules, "mine", raising=False)


def sweep(*arguments: str) -> int:
    return cli.main(["sweep", *arguments])


def read_results(folder: str) -> dict[str, dict]:
    """What must be the same however often a sweep was killed: metrics, and the curves of the logs."""
    found = {}
    for file in sorted(Path(folder).rglob("result.json")):
        data = cockpit_core.load(file.parent)
        curves = {name: data.scalars(name)[1].tolist() for name in ("Loss", "GradNorm", "Distance", "valid_accuracy")}
        found[str(file.relative_to(folder))] = {**json.loads(file.read_text())["metrics"], **curves}
    return found


GRID = ("mine:problem", "--lr", "0.05", "0.2", "--seeds", "2", "--epochs", "4", "--processes", "1", "--every", "3")


KILLS = int(os.environ.get("COCKPIT_KILLS", "2"))


@pytest.mark.slow
def test_killed_at_random_it_ends_with_the_same_results(capsys: pytest.CaptureFixture) -> None:
    assert sweep(*GRID, "--logdir", "whole") == 0
    draw = random.Random(int.from_bytes(os.urandom(4), "big"))
    for number in range(KILLS):
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, "sweep", *GRID, "--logdir", "killed"], start_new_session=True
        )
        wait_for_runs(process, number % 4 + 1)
        time.sleep(draw.uniform(0, 0.4))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert sweep(*GRID, "--logdir", "killed") == 0
    assert len(read_results("whole")) == 4
    np.testing.assert_equal(read_results("killed"), read_results("whole"))
    capsys.readouterr()
    assert sweep(*GRID, "--logdir", "killed") == 0
    assert "4 of 4 are finished already, and are not run again" in capsys.readouterr().out


def wait_for_runs(process: subprocess.Popen, count: int) -> None:
    """Until it has begun that many runs, or has ended."""
    deadline = time.monotonic() + 120
    while len(list(Path("killed").rglob("sweep.json"))) < count and process.poll() is None:
        assert time.monotonic() < deadline, "no run began"
        time.sleep(0.02)


def test_a_nan_run_does_not_stop_the_grid_and_processes_work_side_by_side(capsys: pytest.CaptureFixture) -> None:
    assert sweep("mine:problem", "--lr", "1e20", "0.1", "--epochs", "1", "--processes", "2", "--logdir", "runs") == 0
    text = capsys.readouterr().out
    assert "[2/2]" in text
    assert "left" in text
    results = {file.parts[-3]: json.loads(file.read_text()) for file in Path("runs").rglob("result.json")}
    broken, fine = results["SGD,lr=1e+20"], results["SGD,lr=0.1"]
    assert broken["status"] == "diverged"
    assert broken["metrics"]["valid_accuracy"] is None
    assert fine["status"] == "finished"
    assert fine["metrics"]["test_accuracy"] > 0.1
    assert fine["seconds"] > 0
    assert "cores" in fine["hardware"]
    header = cockpit_core.load(next(Path("runs").rglob("SGD,lr=0.1/seed0"))).header
    assert {"problem", "seed", "hardware", "optimizer"} <= set(header.options)
    (section,) = cockpit_core.compare("runs").sections
    assert [setting.name for setting in section.settings] == ["lr=0.1", "lr=1e+20"]


def test_a_run_that_fails_is_said_and_tried_again(capsys: pytest.CaptureFixture) -> None:
    grid = ("mine:problem", "--optimizer", "mine:Broken", "mine:Worse,momentum=0.5", "--lr", "0.1", "--epochs", "1")
    assert sweep(*grid, "--processes", "1", "--logdir", "runs") == 1
    captured = capsys.readouterr()
    assert "failed: RuntimeError: no idea" in captured.out
    assert "1 of the runs failed; the same command tries them again" in captured.err
    assert len(list(Path("runs").rglob("result.json"))) == 1
    (error,) = Path("runs").rglob("error.txt")
    assert "no idea" in error.read_text()
    assert sweep(*grid, "--processes", "1", "--logdir", "runs") == 1
    assert "1 of 2 are finished already" in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_that_kills_its_process_takes_nothing_with_it(capsys: pytest.CaptureFixture) -> None:
    """Processes run several trials each: whoever comes after the dead one gets a new process."""
    grid = ("mine:problem", "--optimizer", "mine:Deadly", "mine:Broken", "SGD", "--lr", "0.1", "0.2", "--epochs", "1")
    assert sweep(*grid, "--processes", "2", "--logdir", "runs") == 1
    captured = capsys.readouterr()
    assert captured.out.count("failed: exit code 7") == 2
    assert captured.out.count("failed: RuntimeError: no idea") == 2
    assert "4 of the runs failed; the same command tries them again" in captured.err
    done = sorted(file.parts[-3] for file in Path("runs").rglob("result.json"))
    assert done == ["SGD,lr=0.1", "SGD,lr=0.2"]


def test_the_best_is_run_again_with_new_seeds(capsys: pytest.CaptureFixture) -> None:
    grid = ("mine:problem", "--lr", "1e-4", "0.3", "--trials", "3", "--final-seeds", "2", "--epochs", "2")
    assert sweep(*grid, "--processes", "1", "--logdir", "runs") == 0
    assert "lr=0.3" in capsys.readouterr().out
    finals = sorted(str(p.parent.relative_to("runs/final")) for p in Path("runs/final").rglob("result.json"))
    assert finals == [f"mine_problem/SGD,lr=0.3/seed{seed}" for seed in (100, 101)]


def test_printed_commands_are_the_grid(capsys: pytest.CaptureFixture) -> None:
    assert sweep("mine:problem", "--optimizer", "SGD", "Adam,betas=(0.8,0.9)", "--seeds", "2", "--print-commands") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 8
    assert len(set(lines)) == 8
    assert "'Adam,betas=(0.8,0.9)'" in lines[2]
    assert "--first-seed 1 --seeds 1" in lines[-1]
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mnist"], "there is no problem 'mnist'; there are cifar100_allcnnc,"),
        ([], "which problem? There are cifar100_allcnnc,"),
        (["digits_mlp", "--optimizer", "Sgd"], "there is no optimizer 'Sgd'; there are ASGD,"),
        (
            ["digits_mlp", "--optimizer", "nowhere:Thing"],
            "the optimizer 'Thing' cannot be loaded from the module 'nowhere'",
        ),
        (["digits_mlp", "--optimizer", "mine:problem"], "there is no optimizer 'mine:problem'"),
        (["digits_mlp", "--optimizer", "SGD,lr=1"], "learning rates are given by --lr"),
        (["digits_mlp", "--optimizer", "SGD,0.9"], "an option of an optimizer is written name=value"),
        (["digits_mlp", "--lr", "-1"], "a learning rate is a positive number"),
        (["digits_mlp", "--lr", "1", "--trials", "4"], "two different rates"),
        (["digits_mlp", "--config", "first class"], "--config is one of economy, business, full"),
        (["digits_mlp", "--batch-size", "9999", "--processes", "1"], "1 of the runs failed"),
        (["svhn_3c3d"], "SVHN is not here"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COCKPIT_DATA", "none")
    rates = [] if "--lr" in arguments else ["--lr", "0.1"]
    assert sweep(*arguments, *rates) == 1
    words = capsys.readouterr().err
    assert message in words
    assert words.count("\n") == 1


def test_results_of_other_settings_are_not_taken_for_these(capsys: pytest.CaptureFixture) -> None:
    grid = ("mine:problem", "--lr", "0.1", "--processes", "1", "--logdir", "runs")
    assert sweep(*grid, "--epochs", "1") == 0
    assert sweep(*grid, "--epochs", "2") == 1
    assert "was run with epochs=1, not with epochs=2; choose another --logdir" in capsys.readouterr().err


def test_nothing_of_the_users_is_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "precious"
    folder.mkdir()
    (folder / "events.out.tfevents.1.cockpit").write_text("mine")
    with pytest.raises(ValueError, match="holds something that no sweep wrote"):
        clear_unfinished(folder)
    assert (folder / "events.out.tfevents.1.cockpit").read_text() == "mine"


def test_rates_have_equal_ratios_and_options_are_python() -> None:
    assert space_rates([0.001, 1.0], 4) == [0.001, 0.01, 0.1, 1.0]
    assert space_rates([0.1, 0.1, 0.2], None) == [0.1, 0.2]
    assert parse_optimizer("Adam,betas=(0.8, 0.9),amsgrad=True") == ("Adam", {"betas": (0.8, 0.9), "amsgrad": True})
    trial = Trial("a:b", "c:D,x=[1, 2]", 0.5, 3, 1, 1)
    assert trial.find_folder(Path("r")).parts == ("r", "a_b", "c_D,x=_1,_2_,lr=0.5", "seed3")


def test_lbfgs_gets_its_closure() -> None:
    assert sweep("mine:problem", "--optimizer", "LBFGS", "--lr", "0.1", "--epochs", "1", "--processes", "1") == 0
    (result,) = Path("runs/sweep").rglob("result.json")
    assert json.loads(result.read_text())["metrics"]["valid_accuracy"] > 0.3


def test_problems_are_listed(capsys: pytest.CaptureFixture) -> None:
    assert sweep("--list") == 0
    assert "mnist_mlp" in capsys.readouterr().out


def test_torch_is_left_on_the_thread_count_of_the_user() -> None:
    before = torch.get_num_threads()
    assert sweep("mine:problem", "--lr", "0.1", "--epochs", "1", "--processes", "1") == 0
    assert torch.get_num_threads() == before

"""A process that runs one trial after the other: torch is imported and data are loaded only once.

The sweep writes a trial as a line of JSON to the worker's input; the worker answers with an empty line when it is done with
it. What became of the trial is in the trial's folder, where the next call of the sweep looks too. A worker that dies takes
one trial with it, and another one is started.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from cockpit_core.sweeping.trials import ERROR, OUTPUT, Trial, clear_unfinished

PARENT = "COCKPIT_SWEEP_PARENT"
PROGRAM = "from cockpit_core.sweeping.worker import work; work()"


class Worker:
    """The sweep's end: hands out a trial, and puts itself into ``ended`` when it is done with it, or is dead."""

    def __init__(self, threads: int, ended: SimpleQueue[Worker]) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), PARENT: str(os.getpid())}
        command = [sys.executable, "-c", PROGRAM]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        self.trial: Trial | None = None
        self._ended = ended
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def begin(self, trial: Trial, folder: Path, data: str | None, config: str, every: int | None) -> None:
        clear_unfinished(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        find_output(folder).write_bytes(b"")
        self.trial = trial
        order = {"trial": dataclasses.asdict(trial), "folder": str(folder)}
        line = json.dumps(order | {"data": data, "config": config, "every": every})
        try:
            assert self.process.stdin is not None
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            pass  # it died while it waited: the listening thread says so

    def stop(self) -> None:
        self.process.terminate()
        self._listener.join()
        for pipe in (self.process.stdin, self.process.stdout):
            try:
                pipe.close()  # type: ignore[union-attr]
            except OSError:
                pass  # a trial that nobody read

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for _ in self.process.stdout:
            self._ended.put(self)
        self.process.wait()
        self._ended.put(self)


def find_output(folder: Path) -> Path:
    """Beside the run, not in it: it is opened before the run begins."""
    return folder.with_name(f"{folder.name}.{OUTPUT}")


def work() -> None:
    """The worker's end. Whatever trials print goes into a file of their own; only the answers go to the sweep."""
    answers = os.dup(1)
    loaded: dict[str, Any] = {}
    for line in sys.stdin:
        order = json.loads(line)
        folder = Path(order["folder"])
        with find_output(folder).open("wb", buffering=0) as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        loaded = carry_out(Trial(**order["trial"]), folder, order, loaded, lambda words: print(words, flush=True))
        os.write(answers, b"\n")


def carry_out(
    trial: Trial, folder: Path, order: dict[str, Any], loaded: dict[str, Any], say: Callable[[str], None]
) -> dict[str, Any]:
    """Run it and leave its result or its error in its folder; the data that are loaded now, for the next one."""
    from cockpit_core import problems
    from cockpit_core.sweeping.train import Orphan, run_trial

    try:
        problem = problems.find(trial.problem)
        if trial.problem not in loaded:
            loaded = {trial.problem: problem.load(order["data"])}
        run_trial(trial, problem, loaded[trial.problem], folder, order["config"], order["every"], say)
    except (Orphan, KeyboardInterrupt):
        raise
    except Exception:
        write_error(folder, traceback.format_exc())
    return loaded


def write_error(folder: Path, details: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ERROR).write_text(details, "utf-8")


def read_tail(path: Path) -> str:
    """The last line of a file; nothing if there is none."""
    try:
        lines = path.read_text("utf-8", "replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1] if lines else ""

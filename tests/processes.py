"""Several processes, started once for all tests that look at what they wrote."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
KILLED = 3  # the exit code when the system ended one of the processes
TWO = (
    *("equal_batches", "unequal_batches", "truth", "gauss_newton", "accumulation_and_clipping", "neutrality"),
    *("static_graph", "parameters_that_one_rank_does_not_use", "sync_batch_norm", "wishes", "budget", "join"),
    *("sharded", "sharded_neutrality", "sharded_otherwise", "unwrapped", "different_arguments", "directory_in_use"),
    *("instruments", "one_rank_only", "faults", "silence", "death"),  # last: rank 1 is gone afterwards
)
FOUR = ("equal_batches_of_four", "unequal_batches", "truth", "sharded_of_four")


def launch(processes: int, folder: Path, *scenarios: str, timeout: float = 240) -> None:
    """All processes at once; their output is shown if one fails, and none survives this function.

    Once the C library ended a process ("malloc(): unaligned tcache chunk"), and no tool found the reason: neither
    AddressSanitizer in the kernels, nor valgrind and guard pages around all memory. Such an end is shown with where each
    thread was, and the scenarios are tried once more.
    """
    code = _run(processes, folder, scenarios, timeout)
    if code == KILLED:
        with warnings.catch_warnings():
            warnings.simplefilter("always")  # shown, but no error
            warnings.warn(f"a process was ended by the system:\n{(folder / 'output.txt').read_text()}", stacklevel=2)
        shutil.rmtree(folder)
        folder.mkdir()
        code = _run(processes, folder, scenarios, timeout)
    assert code == 0, (folder / "output.txt").read_text()


def _run(processes: int, folder: Path, scenarios: tuple[str, ...], timeout: float) -> int:
    """One process imports everything and becomes all of them by forking: importing takes longer than most scenarios."""
    command = [sys.executable, "-m", "tests.distributed_worker", str(processes), str(folder), *scenarios]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR", "PYTHONPATH": str(ROOT)}
    with (folder / "output.txt").open("w") as output:
        started = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            return started.wait(timeout)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
            started.wait()


def result(folder: Path, scenario: str, rank: int) -> Any:
    return json.loads((folder / f"{scenario}.{rank}.json").read_text())

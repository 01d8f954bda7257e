"""Runs all cases of one half: python -m benchmarks.elsewhere.run --half A [--jobs 2] [--only program] [--kinds healthy]
[--logs folder] [--full].
Resumable."""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import os
import shutil
import sys
import time
import traceback
import warnings
from pathlib import Path

import sklearn.datasets  # noqa: F401  imported once here, not in the process of every case
import torch
import torch._dynamo

import cockpit_core

from .harness import Case, Program
from .programs import HALVES, programs

KINDS = ("plain", "healthy", "severe", "mild")


def logs_folder() -> Path:
    """Where the runs are kept: ELSEWHERE_LOGS, or runs/elsewhere."""
    return Path(os.environ.get("ELSEWHERE_LOGS", "runs/elsewhere"))


def track_fully() -> None:
    """Programs call ``track`` with its defaults; from here on that is "full" at every 5th step, in this process."""
    cockpit_core.track = functools.partial(cockpit_core.track, config="full", schedule=5)


def run_one(program: Program, case: Case, seed: int, folder: Path, full: bool = False) -> None:
    """One case, in a process of its own; always leaves a result."""
    if full:
        track_fully()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    result = {
        "program": program.name,
        "fault": case.label,
        "severity": case.kind,
        "seed": seed,
        "accepted": list(case.accepted),
    }
    start = time.time()
    with open(folder / "output.txt", "w") as out:
        sys.stdout = sys.stderr = out
        try:
            result["error"] = program.run_case(case, seed, str(folder / "log"))
        except BaseException:
            result["error"] = None
            result["traceback"] = traceback.format_exc()
    result["seconds"] = round(time.time() - start, 2)
    partial = folder / "result.tmp"
    partial.write_text(json.dumps(result, indent=1))
    partial.rename(folder / "result.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--half", required=True, choices=list(HALVES))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", nargs="*", help="names of programs")
    parser.add_argument("--seeds", type=int, default=2, help="of the faults")
    parser.add_argument("--kinds", nargs="*", default=KINDS, choices=KINDS, help="plain runs are always there")
    parser.add_argument("--limit", type=float, default=120, help="seconds after which a case is given up")
    parser.add_argument("--logs", type=Path, default=logs_folder())
    parser.add_argument("--full", action="store_true", help='track with "full" at every 5th step')
    options = parser.parse_args()

    torch.set_num_threads(1)
    todo = []
    for program in programs(options.half):
        if options.only and program.name not in options.only:
            continue
        cases = [item for item in program.cases() if item[0].kind in ("plain", *options.kinds)]
        cases = [(case, seed) for case, seed in cases if case.kind not in ("severe", "mild") or seed < options.seeds]
        for case, seed in cases:
            group = [other.id for other, _ in cases if (other.kind == "healthy") == (case.kind == "healthy")]
            # plain runs first: they show soonest that a program learns; then evenly over programs, faults and healthy variants
            place = -1.0 if case.kind == "plain" else group.index(case.id) / len(group)
            folder = options.logs / options.half / program.name / f"{case.id}.{seed}"
            if not (folder / "result.json").exists():
                todo.append((place, program, case, seed, folder))
    todo = [item[1:] for item in sorted(todo, key=lambda item: item[0])]
    print(f"{len(todo)} cases to run", flush=True)

    context = multiprocessing.get_context("fork")
    running: list[tuple[multiprocessing.process.BaseProcess, float, tuple]] = []
    done, total, begun = 0, len(todo), time.time()
    while todo or running:
        while todo and len(running) < options.jobs:
            item = todo.pop(0)
            process = context.Process(target=run_one, args=(*item, options.full))
            process.start()
            running.append((process, time.time(), item))
        time.sleep(0.05)
        for entry in list(running):
            process, start, (program, case, seed, folder) = entry
            if process.is_alive() and time.time() - start > options.limit:
                process.kill()
            if process.is_alive():
                continue
            process.join()
            running.remove(entry)
            done += 1
            path = folder / "result.json"
            if not path.exists():  # killed: written down, so that a restart does not hang on it again
                reason = f"process ended with {process.exitcode} after {time.time() - start:.0f} s"
                result = {"program": program.name, "fault": case.label, "severity": case.kind, "seed": seed}
                path.write_text(
                    json.dumps(result | {"accepted": list(case.accepted), "error": None, "traceback": reason})
                )
            result = json.loads(path.read_text())
            error = "failed" if result["error"] is None else f"{result['error']:.3f}"
            left = (time.time() - begun) / done * (total - done) / 60
            print(
                f"{done}/{total} {program.name} {case.id}.{seed}: {error}, {time.time() - start:.1f} s, {left:.0f} min left",
                flush=True,
            )


if __name__ == "__main__":
    main()

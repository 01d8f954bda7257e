"""``python -m benchmarks.diagnosis.run``: all runs, resumable, over all cores, with progress; then ``score`` reads them.

The whole is 1,900 runs tracked with all that rules read, and as many with the default of ``track``. ``--small`` is the part
that CI runs. Logs stay, so that changed rules are scored without training again.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import shutil
import sys
import time
from pathlib import Path

from benchmarks.diagnosis.faults import FAULTS, ONE_GRADE, fits
from benchmarks.diagnosis.healthy import names_of_awkward
from benchmarks.diagnosis.programs import PROGRAMS

FOLDER = Path("runs/diagnosis")
TRACKING = ("full", "lean", "default")
Case = tuple[str, str, int]
QUICK = ("mlp", "regression")


def list_cases(seeds: int, healthy: int, programs: list[str]) -> list[Case]:
    """Healthy runs first: an alarm there is worse than a miss. Then seed by seed, so that a part is worth something."""
    per_program = -(-healthy // len(PROGRAMS))
    cases: list[Case] = [(program, "plain", seed) for seed in range(seeds) for program in programs]
    cases += [(program, "healthy", seed) for seed in range(per_program) for program in programs]
    for seed in range(seeds):
        own = [(program, f"awkward/{name}", seed) for program, name in names_of_awkward()]
        own += [(program, fault, seed) for fault, program in list_faults()]
        random.Random(seed).shuffle(own)  # what is done after an hour tells of all faults
        cases += [case for case in own if case[0] in programs]
    return cases


def list_faults() -> list[tuple[str, str]]:
    """Each fault in each grade that it has, with each program that it fits."""
    found = []
    for name in FAULTS:
        for grade in ("severe",) if name in ONE_GRADE else ("severe", "mild"):
            found += [(f"{grade}/{name}", program) for program in PROGRAMS if fits(name, PROGRAMS[program])]
    return found


def small_cases() -> list[Case]:
    """Sixty runs on the two quickest programs: healthy ones, awkward ones, and each fault that fits, severe, once."""
    cases: list[Case] = [(program, "plain", 0) for program in QUICK]
    cases += [(program, "healthy", seed) for program in QUICK for seed in range(1, 4)]
    cases += [("mlp", f"awkward/{name}", 0) for name in ("zero_head", "full_batch", "edge_rate", "resumed")]
    cases += [
        ("regression", f"awkward/{name}", 0) for name in ("frozen_backbone", "heavy_tails", "fine_tuning", "below_zero")
    ]
    severe = [name for name in FAULTS if any(fits(name, PROGRAMS[p]) for p in QUICK)]
    chosen = []
    for number, name in enumerate(severe):
        fitting = [p for p in QUICK if fits(name, PROGRAMS[p])]
        chosen.append((fitting[number % len(fitting)], f"severe/{name}", 0))
    return cases[: 60 - len(chosen)] + chosen


def folder_of(case: Case, root: Path) -> Path:
    program, what, seed = case
    return root / program / f"{what.replace('/', '.')}.{seed}"


def work(item: tuple[Case, Path, str]) -> tuple[Case, str]:
    import torch

    from benchmarks.diagnosis.loop import run_case

    torch.set_num_threads(1)
    case, root, tracking = item
    folder = folder_of(case, root)
    if (folder / "result.json").exists():  # another process was quicker
        return case, ""
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    try:
        run_case(*case, folder, tracking)
        return case, ""
    except Exception as error:
        return case, f"{type(error).__name__}: {error}"


def run_all(cases: list[Case], root: Path, tracking: str, jobs: int) -> int:
    """How many failed; those that are there already are not repeated."""
    left = [case for case in cases if not (folder_of(case, root) / "result.json").exists()]
    print(f"{len(cases)} runs, {len(cases) - len(left)} there already", flush=True)
    failed, began = 0, time.time()
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for number, (case, error) in enumerate(pool.imap_unordered(work, [(c, root, tracking) for c in left]), 1):
            if error:
                failed += 1
                print(f"  {' '.join(map(str, case))}: {error}", flush=True)
            if number % 10 == 0 or number == len(left):
                each = (time.time() - began) / number
                print(f"  {number} of {len(left)}, {each * (len(left) - number) / 60:.0f} minutes to go", flush=True)
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--healthy", type=int, default=300)
    parser.add_argument("--programs", nargs="*", default=list(PROGRAMS))
    parser.add_argument("--tracking", nargs="*", default=["lean", "default"], choices=TRACKING)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--only", nargs="*", help="plain, healthy, awkward, severe, mild: these alone")
    parser.add_argument("--small", action="store_true", help="a few runs, for CI")
    arguments = parser.parse_args()
    cases = small_cases() if arguments.small else list_cases(arguments.seeds, arguments.healthy, arguments.programs)
    if arguments.only:
        cases = [case for case in cases if case[1].partition("/")[0] in arguments.only]
    failed = 0
    for tracking in arguments.tracking:
        failed += run_all(cases, arguments.folder / tracking, tracking, arguments.jobs)
    print("now: python -m benchmarks.diagnosis.score", arguments.folder)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

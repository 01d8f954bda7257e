"""All experiments, then docs/experiments.md: ``make experiments`` for the quick forms, ``--full`` as in the paper.

Each in a process of its own, two at a time with a thread each; one that fails does not stop the others. ``--pages`` only
writes the page again.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # the scripts are a package of the clone, not of the installation

FIGURES = ("05", "02", "19", "11", "10", "04", "03", "01")  # long ones first: then none is left alone at the end


def run_figure(figure: str, options: list[str], jobs: int) -> bool:
    """Its lines as they come, each with the figure's number; did it succeed?"""
    command = [sys.executable, "-m", f"experiments.figure_{figure}", *options]
    variables = os.environ | {"PYTHONUNBUFFERED": "1"} | ({"OMP_NUM_THREADS": "1"} if jobs > 1 else {})
    began = time.monotonic()
    print(f"{figure} | begins", flush=True)
    with subprocess.Popen(
        command, cwd=ROOT, env=variables, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        for line in process.stdout or ():
            print(f"{figure} | {line}", end="", flush=True)
    print(f"{figure} | {'done' if not process.returncode else 'failed'}, {time.monotonic() - began:.0f} s", flush=True)
    return not process.returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="with the paper's numbers of steps, rates and seeds: hours")
    parser.add_argument("--only", nargs="+", choices=FIGURES, default=FIGURES)
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="how many at a time")
    parser.add_argument("--data", metavar="FOLDER", help="your data, as torchvision stores them")
    parser.add_argument(
        "--pages", action="store_true", help="only write docs/experiments.md, from the results that are there"
    )
    given = parser.parse_args()
    figures = [] if given.pages else [figure for figure in FIGURES if figure in given.only]
    options = ([] if given.full else ["--quick"]) + (["--data", given.data] if given.data else [])
    began = time.monotonic()
    with ThreadPoolExecutor(given.jobs) as pool:
        succeeded = list(pool.map(lambda figure: run_figure(figure, options, given.jobs), figures))
    failed = [figure for figure, good in zip(figures, succeeded, strict=True) if not good]
    if figures:
        print(f"{len(figures)} figures in {(time.monotonic() - began) / 60:.1f} minutes", flush=True)
    from experiments.page import write_page

    print(write_page())
    if failed:
        print(f"cockpit: figures {', '.join(failed)} failed", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

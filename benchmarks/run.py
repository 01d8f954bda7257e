"""All benchmarks, then the tables of README.md and docs/benchmarks.md: ``make bench``, or ``python benchmarks/run.py``.

Under half an hour on two cores, one script after the other, each in a process of its own. A script that fails does not
stop the others; one that takes too long is interrupted, and what it had measured stays. ``--pages`` only writes the tables
again, from the results that are there.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # the scripts are a package of the clone, not of the installation

# In order of importance, with the minutes that each may take at most.
SCRIPTS = {
    "overhead": 11,
    "intervals": 7,
    "memory": 6,
    "depth": 5,
    "against_2021": 5,
    "idle": 1,
    "naive": 2,
    "eigenvalue": 4,
    "histogram_kernels": 2,
    "scaling": 2,
    "instruments": 3,
}
MINUTES = 29.0
"""For all of them together."""
OPTIONAL = sorted(
    path.stem
    for kind in ("tb_*.py", "widget*.py")
    for path in (ROOT / "benchmarks").glob(kind)
    if "__main__" in path.read_text()
)
"""The TensorBoard tab and the notebook widget: only when named with ``--only``."""


def run(name: str, minutes: float, more: list[str]) -> bool:
    print(f"\n==== {name}, {minutes:.1f} minutes at most", flush=True)
    began = time.monotonic()
    command = [sys.executable, "-m", f"benchmarks.{name}", *more]
    variables = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}  # all cores, or --threads
    process = subprocess.Popen(command, cwd=ROOT, env=variables, start_new_session=True)
    try:
        code = process.wait(60 * minutes)
    except (subprocess.TimeoutExpired, KeyboardInterrupt) as reason:
        stop(process)
        if isinstance(reason, KeyboardInterrupt):
            raise
        print(f"{name} was stopped after {minutes:.1f} minutes; what it had measured stays", file=sys.stderr)
        return False
    print(f"---- {name}: {'done' if code == 0 else 'failed'} after {time.monotonic() - began:.0f} s", flush=True)
    return code == 0


def stop(process: subprocess.Popen[bytes]) -> None:
    """With the processes that it started; it has some seconds to write and draw what it has."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run_all(names: list[str], minutes: float, more: list[str]) -> list[str]:
    """The names of those that failed or were stopped."""
    end = time.monotonic() + 60 * minutes
    failed = []
    for name in names:
        left = (end - time.monotonic()) / 60
        if left <= 0.1:
            print(f"\n==== {name}: no time left", file=sys.stderr)
            failed.append(name)
        elif not run(name, min(SCRIPTS.get(name, left), left), more if name in SCRIPTS else []):
            failed.append(name)
    print(f"\nall in all {minutes - (end - time.monotonic()) / 60:.1f} minutes", flush=True)
    return failed


def pass_on(options: argparse.Namespace) -> Iterator[str]:
    """The options that every script takes."""
    if options.quick:
        yield from ("--quick", "--results", str(ROOT / "runs" / "quick-benchmarks"))
    for name in ("clock", "threads"):
        if getattr(options, name):
            yield from (f"--{name}", getattr(options, name))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = (*SCRIPTS, *OPTIONAL)
    listed = f"any of {', '.join(SCRIPTS)}; and, if named, {', '.join(OPTIONAL)}"
    parser.add_argument("--only", nargs="+", choices=names, default=list(SCRIPTS), metavar="SCRIPT", help=listed)
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"for all together ({MINUTES:g})")
    parser.add_argument("--quick", action="store_true", help="to see that everything runs; writes no tables")
    parser.add_argument("--pages", action="store_true", help="only write the tables")
    parser.add_argument("--clock", help="cpu: for a machine that others use (see the scripts)")
    parser.add_argument("--threads", help="of torch and of our kernels (all cores)")
    options = parser.parse_args()
    failed: list[str] = []
    try:
        if not options.pages:
            failed = run_all(options.only, options.minutes, list(pass_on(options)))
    finally:
        if not options.quick:
            from benchmarks.pages import write_pages

            write_pages()
    if failed:
        print(f"not complete: {', '.join(failed)}", file=sys.stderr)
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())

"""All benchmarks, then the tables of README.md and docs/benchmarks.md: ``make bench``, or ``python benchmarks/run.py``.

Under half an hour on two cores, one script after the other, each in a process of its own; a script that fails or takes
too long does not stop the others. ``--pages`` only writes the tables again, from the results that are there.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # the scripts are a package of the clone, not of the installation

# In order of importance, with the minutes that each may take.
SCRIPTS = {
    "overhead": 7,
    "memory": 5,
    "intervals": 3,
    "against_2021": 5,
    "idle": 1,
    "scaling": 2,
    "eigenvalue": 5,
    "histogram_kernels": 2,
}


def run(name: str, minutes: float, more: list[str]) -> bool:
    print(f"\n==== {name}", flush=True)
    began = time.monotonic()
    command = [sys.executable, "-m", f"benchmarks.{name}", *more]
    try:
        code = subprocess.run(command, cwd=ROOT, timeout=60 * minutes).returncode
    except subprocess.TimeoutExpired:
        print(f"{name} was stopped after {minutes} minutes; what it had written stays", file=sys.stderr)
        return False
    print(f"---- {name}: {'done' if code == 0 else 'failed'} after {time.monotonic() - began:.0f} s", flush=True)
    return code == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=tuple(SCRIPTS), default=list(SCRIPTS), metavar="SCRIPT")
    parser.add_argument("--quick", action="store_true", help="to see that everything runs; writes no tables")
    parser.add_argument("--pages", action="store_true", help="only write the tables")
    options = parser.parse_args()
    failed = []
    if not options.pages:
        more = ["--quick", "--results", str(ROOT / "runs" / "quick-benchmarks")] if options.quick else []
        failed = [name for name in options.only if not run(name, SCRIPTS[name], more)]
    if not options.quick:
        from benchmarks.pages import write_pages

        write_pages()
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())

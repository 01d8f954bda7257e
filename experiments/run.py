"""All experiments, then docs/experiments.md: ``make experiments`` for the quick forms, ``--full`` as in the paper.

Each in a process of its own; one that fails does not stop the others. ``--pages`` only writes the page again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # the scripts are a package of the clone, not of the installation

FIGURES = ("01", "03", "04", "11", "19", "05", "10", "02")  # the cheap ones first


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="with the paper's numbers of steps, rates and seeds: hours")
    parser.add_argument("--only", nargs="+", choices=FIGURES, default=FIGURES)
    parser.add_argument("--data", metavar="FOLDER", help="your data, as torchvision stores them")
    parser.add_argument(
        "--pages", action="store_true", help="only write docs/experiments.md, from the results that are there"
    )
    given = parser.parse_args()
    failed = []
    for number, figure in enumerate(() if given.pages else given.only, start=1):
        command = [sys.executable, "-m", f"experiments.figure_{figure}", *([] if given.full else ["--quick"])]
        command += ["--data", given.data] if given.data else []
        began = time.monotonic()
        print(f"[{number}/{len(given.only)}] figure {figure}", flush=True)
        if subprocess.run(command, cwd=ROOT).returncode:
            failed.append(figure)
        print(f"      {time.monotonic() - began:.0f} s", flush=True)
    from experiments.page import write_page

    print(write_page())
    if failed:
        print(f"cockpit: figures {', '.join(failed)} failed", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Beside the other tools of today: ``python -m benchmarks.peers``.

opacus, ``torch.func``, curvlinops and cockpit-for-pytorch 1.0.2 are put into an environment of their own
(``.venv-peers``, made at the first call), which borrows torch and everything else from ours. There all of them take
turns with the untracked step and with Cockpit in one process, on the same batches of 16. Not part of ``make bench``.

Norms of the individual gradients: each tool's cheapest way that ends in a step of the optimizer. Cockpit tracks
``NormTest`` at every step, with signals, diagnosis and log, as a user would; and once more without signals and diagnosis,
which no other tool has. The largest eigenvalue of the Hessian: by
Lanczos to a residual of 0.5 %.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from shutil import rmtree
from typing import Any

from benchmarks.measure import compare
from benchmarks.results import ROOT, kept, make_parser, parse, report

ENVIRONMENT = ROOT / ".venv-peers"
TOOLS = ("opacus==1.6.0", "curvlinops-for-pytorch==3.0.1", "cockpit-for-pytorch==1.0.2")
THEIRS = ("einconv", "linear_operator", "opt_einsum", "json_tricks", "seaborn", "setuptools<80")
"""What they need and we have not; installed without what these need in turn, so that torch stays the same."""
ROWS = [
    ("norms", "LSTM"), ("norms", "transformer"), ("norms", "ResNet-14, GroupNorm"), ("norms", "3C3D"),
    ("eigenvalue", "transformer"), ("eigenvalue", "3C3D"),
]  # fmt: skip


def make_environment(folder: Path) -> Path:
    """Its Python."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.check_call([sys.executable, "-m", "venv", str(folder)])
    packages = next(folder.glob("lib/python3*/site-packages"))
    (packages / "ours.pth").write_text(sysconfig.get_path("purelib") + "\n")
    if subprocess.run([python, "-c", "import opacus, curvlinops, cockpit"], capture_output=True).returncode:
        print("installing opacus, curvlinops and cockpit-for-pytorch", flush=True)
        subprocess.check_call([python, "-m", "pip", "install", "-q", "--no-deps", *TOOLS, *THEIRS])
    for name in ("benchmarks", "examples"):  # opacus brings packages of these names, which hide ours
        rmtree(packages / name, ignore_errors=True)
    return python


def measure(python: Path, task: str, network: str, options: Namespace) -> dict[str, Any]:
    variables = {**os.environ, "OMP_NUM_THREADS": str(options.threads), "PYTHONPATH": str(ROOT)}
    command = [str(python), "-m", "benchmarks.worker_peers", task, network]
    command += ["--rounds", str(options.rounds), "--clock", options.clock]
    output = subprocess.check_output(command, cwd=ROOT, text=True, env=variables)
    found = json.loads(output.splitlines()[-1])
    return {"rows": compare(found["times"]), "reasons": found["reasons"]}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, rounds=60)
    parser.add_argument("--environment", type=Path, default=ENVIRONMENT, help="where the other tools are installed")
    options = parse(parser, arguments)
    python = make_environment(options.environment)
    content: dict[str, Any] = {"tools": list(TOOLS), "tasks": {}}
    with kept("peers", content, options) as save:
        for task, network in ROWS[:1] if options.quick else ROWS:
            content["tasks"].setdefault(task, {})[network] = found = measure(python, task, network, options)
            report(f"{task}, {network}", found["rows"])
            for name, reason in found["reasons"].items():
                print(f"  {name} cannot: {reason}")
            save()


if __name__ == "__main__":
    main()

"""Against the tool of 2021 and against ``torch.func``: ``python -m benchmarks.against_2021``.

``cockpit-for-pytorch`` 1.0.2 runs in an environment of its own (``.venv-2021``, made at the first call: 1 GB), on the
same network and batch, each configuration beside its own untracked step in one process. ``torch.func`` takes turns
with us.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from benchmarks.measure import (
    CONFIGURATIONS,
    ROOT,
    Step,
    Training,
    compare,
    make_parser,
    parse,
    report,
    take_turns,
    tracked,
    write_results,
)
from benchmarks.naive import NaiveEconomy
from benchmarks.networks import NETWORKS, Network

ENVIRONMENT = ROOT / ".venv-2021"
PYTHON = ENVIRONMENT / "bin" / "python"
# It imports pkg_resources, which later setuptools do not bring; the other two as in constraints.txt.
REQUIREMENTS = ("setuptools<80", "torch==2.13.0", "torchvision==0.28.0", "cockpit-for-pytorch==1.0.2")
TITLES = [title for title, c in CONFIGURATIONS.items() if c.curvature == "hessian"]


def make_environment() -> None:
    if not PYTHON.exists():
        subprocess.check_call([sys.executable, "-m", "venv", str(ENVIRONMENT)])
    if subprocess.run([PYTHON, "-c", "import cockpit"], capture_output=True).returncode:
        print("installing cockpit-for-pytorch 1.0.2", flush=True)
        subprocess.check_call([PYTHON, "-m", "pip", "install", "-q", *REQUIREMENTS])


def ask(title: str, network: Network, options: Namespace, *more: str) -> dict[str, Any]:
    c = CONFIGURATIONS[title]
    command = [str(PYTHON), "-m", "benchmarks.worker_2021", c.config, c.optimizer, "--network", network.name]
    variables = {**os.environ, "OMP_NUM_THREADS": str(options.threads)}
    output = subprocess.check_output([*command, "--clock", options.clock, *more], cwd=ROOT, text=True, env=variables)
    return json.loads(output.splitlines()[-1])


def measure_2021(network: Network, options: Namespace) -> None:
    """Its "full" step takes half a minute: two of them must do, without one to warm up."""
    results: dict[str, Any] = {}
    for title in options.titles:
        slow = CONFIGURATIONS[title].config == "full"
        repeat = ("--rounds", "2", "--warm", "0") if slow else ("--rounds", str(options.rounds))
        row = compare(ask(title, network, options, *repeat))["tracked"]
        row["extra MB"] = None if options.no_memory else ask(title, network, options, "--memory")["extra"]
        results[title] = row
        write_results("against_2021", {"network": network.name, "rows": results}, options)
        report("cockpit-for-pytorch 1.0.2", {title: row})


def measure_naive(network: Network, options: Namespace) -> dict[str, Any]:
    with tracked(Training(network.make()), config="economy") as training:
        contestants: dict[str, Step] = {
            "untracked": Training(network.make()),
            "economy": training,
            "torch.func, all at once": NaiveEconomy(network.make()),
        }
        return compare(take_turns(contestants, network.batch, options.rounds, clock=options.clock))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, rounds=7)
    parser.add_argument("--titles", nargs="*", choices=TITLES, default=TITLES, metavar="CONFIGURATION")
    parser.add_argument("--no-memory", action="store_true", help="time only")
    options = parse(parser, arguments)
    network = NETWORKS["mnist_logreg" if options.quick else "cifar10_3c3d"]
    rows = measure_naive(network, options)
    report("individual gradients with torch.func", rows)
    write_results("against_naive", {"network": network.name, "rows": rows}, options)
    if options.titles:
        make_environment()
        measure_2021(network, options)


if __name__ == "__main__":
    main()

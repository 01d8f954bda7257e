"""Against the tool of 2021: ``python -m benchmarks.against_2021``.

``cockpit-for-pytorch`` 1.0.2 runs in an environment of its own (``.venv-2021``, made at the first call: 1 GB), on the
same network and batches, each configuration beside its own untracked step in one process: first some untracked steps,
then both in turn. Its extra memory is how far that raised the high-water mark. Needs Linux.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from benchmarks.measure import CONFIGURATIONS, compare
from benchmarks.networks import PAPER
from benchmarks.results import ROOT, kept, make_parser, parse, report

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


def make_command(title: str, network: str, *more: str) -> list[str]:
    c = CONFIGURATIONS[title]
    return [str(PYTHON), "-m", "benchmarks.worker_2021", c.config, c.optimizer, "--network", network, *more]


def measure(title: str, network: str, options: Namespace) -> dict[str, Any]:
    """Its "full" step takes up to half a minute: two of them must do, without one to warm up."""
    rounds = ("--rounds", "2", "--warm", "0") if CONFIGURATIONS[title].expensive else ("--rounds", str(options.rounds))
    variables = {**os.environ, "OMP_NUM_THREADS": str(options.threads)}
    command = make_command(title, network, "--clock", options.clock, *rounds)
    output = subprocess.check_output(command, cwd=ROOT, text=True, env=variables)
    found = json.loads(output.splitlines()[-1])
    return {**compare(found["times"])["tracked"], "extra MB": found["extra"]}


def draw(content: dict[str, Any], options: Namespace) -> None:
    """Both tools, where both were measured by the same clock."""
    from benchmarks.figures import draw_dots, figure

    path = options.results / "overhead_configurations.json"
    ours = json.loads(path.read_text()) if path.exists() else {"rows": {}, "machine": {"clock": options.clock}}
    old, new = "cockpit-for-pytorch 1.0.2", "Cockpit"
    rows: dict[str, dict[str, Any]] = {title: {old: row} for title, row in content["rows"].items()}
    for title in rows:
        if title in ours["rows"] and ours["machine"]["clock"] == options.clock:
            rows[title][new] = ours["rows"][title]
    if rows:
        titles = [title for title in (new, old) if any(title in row for row in rows.values())]
        with figure(options.results, "against_2021", size=(6, 1.1 + 0.3 * len(rows))) as axes:
            draw_dots(axes, rows, titles, f"multiple of the untracked step, {content['network']}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, rounds=5)
    parser.add_argument("--titles", nargs="*", choices=TITLES, default=TITLES, metavar="CONFIGURATION")
    options = parse(parser, arguments)
    network = PAPER["mnist_logreg" if options.quick else "cifar10_3c3d"].name
    make_environment()
    content: dict[str, Any] = {"network": network, "rows": {}}
    with kept("against_2021", content, options, draw) as save:
        for title in options.titles:
            content["rows"][title] = row = measure(title, network, options)
            report(f"cockpit-for-pytorch 1.0.2, {network}, +{row['extra MB']:.0f} MB", {title: row})
            save()


if __name__ == "__main__":
    main()

"""The options that all benchmarks take, facts about the machine, and results that stay when a script is interrupted."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import CLOCKS

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
VERSIONS = ("torch", "numpy", "numba", "triton", "scipy")


def make_parser(description: str | None, rounds: int) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds, help=f"steps of each contestant ({rounds})")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--clock", choices=tuple(CLOCKS), default="wall", help="cpu: for a machine that others use")
    parser.add_argument("--quick", action="store_true", help="as little as possible, to see that it runs")
    parser.add_argument("--results", type=Path, default=RESULTS)
    return parser


def parse(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    options = parser.parse_args(arguments)
    if options.quick:
        options.rounds = 1
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    options.load = os.getloadavg()
    options.began = time.perf_counter()
    return options


def describe_machine(options: argparse.Namespace) -> dict[str, Any]:
    """What a reader needs to judge the numbers; nothing that names the machine."""
    return {
        "cores": os.cpu_count(),
        "processor": find_processor(),
        "device": find_device(),
        "threads": options.threads,
        "python": platform.python_version(),
        **find_versions(),
        "clock": options.clock,
        "load before": round(options.load[0], 1),
        "load after": round(os.getloadavg()[0], 1),
        "date": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
        "took": round(time.perf_counter() - options.began),
    }


def find_versions() -> dict[str, str]:
    found = {}
    for name in VERSIONS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return {**found, "torch": torch.__version__}


def find_processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")


def find_device() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def shorten(value: Any) -> Any:
    """Four digits: more would be noise, and churn in the repository."""
    if isinstance(value, dict):
        return {str(key): shorten(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [shorten(item) for item in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def write_results(name: str, content: dict[str, Any], options: argparse.Namespace) -> None:
    options.results.mkdir(parents=True, exist_ok=True)
    full = {"machine": describe_machine(options), "rounds": options.rounds, **content}
    (options.results / f"{name}.json").write_text(json.dumps(shorten(full), indent=1) + "\n")


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


Draw = Callable[[dict[str, Any], argparse.Namespace], None]


@contextmanager
def kept(
    name: str, content: dict[str, Any], options: argparse.Namespace, draw: Draw | None = None
) -> Iterator[Callable[[], None]]:
    """Hands out a function that writes ``content`` as it is then. Whatever ends the block, what was measured is drawn;
    a block that ends before the first result leaves the older ones alone.
    """
    before = signal.signal(signal.SIGTERM, interrupt)
    written = complete = False

    def save() -> None:
        nonlocal written
        written = True
        write_results(name, {**content, "complete": complete}, options)

    try:
        yield save
        complete = True
        save()
    except KeyboardInterrupt:
        raise SystemExit(f"interrupted; what was measured is kept in {name}.json") from None
    finally:
        signal.signal(signal.SIGTERM, before)
        if written and draw is not None:
            draw(content, options)


def report(title: str, rows: dict[str, dict[str, Any]]) -> None:
    print(f"\n{title}", flush=True)
    for name, row in rows.items():
        multiple, seconds = row["multiple"], row["seconds"]["median"]
        spread = f"({multiple['low']:.2f} to {multiple['high']:.2f})"
        rounds = f"{row['rounds']:3d} rounds"
        print(f"  {name:28s} {multiple['median']:7.2f}x {spread:20s} {1e3 * seconds:9.2f} ms {rounds}", flush=True)

"""What all benchmarks share: a training step to time, contestants that take turns, facts about the machine, results.

Every number is a median with quartiles over rounds in which each contestant makes one step on the same new batch, in
one process: whatever slows the machine down for a while slows all of them down.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}

Batch = tuple[Tensor, Tensor]
Step = Callable[[Tensor, Tensor], object]
Row = dict[str, float]


@dataclass(frozen=True)
class Configuration:
    title: str
    config: str
    optimizer: str = "SGD"
    curvature: str = "hessian"


CONFIGURATIONS = {
    configuration.title: configuration
    for configuration in (
        Configuration("economy, SGD", "economy"),
        Configuration("economy, Adam", "economy", "Adam"),
        Configuration("business, SGD", "business"),
        Configuration("business, SGD, ggn_mc", "business", curvature="ggn_mc"),
        Configuration("full, SGD", "full"),
    )
}


class Training:
    """A model, a loss and an optimizer; calling it makes one training step."""

    def __init__(self, model: nn.Module, optimizer: str = "SGD", learning_rate: float = 1e-3):
        self.model, self.loss_fn = model, nn.CrossEntropyLoss()
        self.optimizer = getattr(torch.optim, optimizer)(model.parameters(), lr=learning_rate)

    def __call__(self, inputs: Tensor, labels: Tensor) -> None:
        self.optimizer.zero_grad()
        self.loss_fn(self.model(inputs), labels).backward()
        self.optimizer.step()


@contextmanager
def tracked(training: Training, **options: Any) -> Iterator[Training]:
    """Tracked with the options of ``cockpit_core.track``, into a folder that is gone afterwards."""
    import cockpit_core  # not above: the environment of the 2021 tool has none

    with tempfile.TemporaryDirectory() as folder:
        run = cockpit_core.track(
            training.model, training.loss_fn, training.optimizer, Path(folder) / "run", on_error="raise", **options
        )
        try:
            yield training
        finally:
            run.close()


def take_turns(
    contestants: dict[str, Step], make_batch: Callable[[], Batch], rounds: int, *, warm: int = 2, clock: str = "wall"
) -> dict[str, list[float]]:
    """Seconds of each step, after ``warm`` rounds that compile and fill caches."""
    now = CLOCKS[clock]
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(warm + rounds):
        batch = make_batch()
        for name, step in contestants.items():
            start = now()
            step(*batch)
            if turn >= warm:
                times[name].append(now() - start)
    return times


def summarise(values: Sequence[float], unit: float = 1.0) -> Row:
    """Median and quartiles, in multiples of ``unit``."""
    low, median, high = np.percentile(values, [25, 50, 75]) / unit
    return {"low": float(low), "median": float(median), "high": float(high)}


def compare(times: dict[str, list[float]], base: str = "untracked") -> dict[str, dict[str, Any]]:
    """Per contestant: seconds, and multiples of the base's median."""
    unit = float(np.median(times[base]))
    return {name: {"seconds": summarise(v), "multiple": summarise(v, unit)} for name, v in times.items()}


# ---- options and results ---------------------------------------------------------------------------------------------


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
        "threads": options.threads,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "clock": options.clock,
        "load before": round(options.load[0], 1),
        "load after": round(os.getloadavg()[0], 1),
        "date": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
        "took": round(time.perf_counter() - options.began),
    }


def find_processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")


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


def report(title: str, rows: dict[str, dict[str, Any]]) -> None:
    print(f"\n{title}", flush=True)
    for name, row in rows.items():
        multiple, seconds = row["multiple"], row["seconds"]["median"]
        spread = f"({multiple['low']:.2f} to {multiple['high']:.2f})"
        print(f"  {name:28s} {multiple['median']:7.2f}x {spread:20s} {1e3 * seconds:9.2f} ms", flush=True)

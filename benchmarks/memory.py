"""What a tracked step takes in memory: ``python -m benchmarks.memory``.

Extra peak: in a fresh process that has imported everything and compiled its kernels, the high-water mark of resident
memory after some untracked steps, and how much further it rises by tracked ones. Then memory over time within one step,
the paper's Figure 10, sampled from outside; there, malloc is told to hand freed memory back at once. Needs Linux.
``--network gpt --parts peaks``: of a GPT with 11.5 million parameters.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from torch import nn

from benchmarks import against_2021
from benchmarks.architectures import LARGE
from benchmarks.measure import CONFIGURATIONS, Training, make_quantity, summarise, tracked
from benchmarks.naive import TITLE as NAIVE
from benchmarks.naive import NaiveEconomy
from benchmarks.networks import PAPER, TINY
from benchmarks.results import ROOT, Draw, kept, make_parser, parse

STEPS = 3
OLD = "cockpit-for-pytorch 1.0.2, "
PEAKS = ("untracked", *CONFIGURATIONS, NAIVE)
TIMELINES = ("untracked", "GradHist1d", "economy, SGD", "business, SGD", "full, SGD", NAIVE, f"{OLD}economy, SGD")
POINTS = 300
EAGER = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "0"}
"""Makes malloc hand freed memory back at once."""


def read_status(field: str) -> float:
    """A line of this process's account in MB: VmHWM is the high-water mark, VmRSS the present."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def reset_peak() -> None:
    """Compiling kernels takes more for a moment than training does, and freed memory that malloc holds back would be
    used again: either would hide what follows.
    """
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


# ---- in the fresh process --------------------------------------------------------------------------------------------


def attach(title: str, model: nn.Module) -> AbstractContextManager[Training]:
    if title == "untracked":
        return nullcontext(Training(model))
    if title == NAIVE:
        return nullcontext(NaiveEconomy(model))
    if title in CONFIGURATIONS:
        c = CONFIGURATIONS[title]
        return tracked(Training(model, c.optimizer), c.scale, config=c.config, curvature=c.curvature)
    return tracked(Training(model), config=[make_quantity(title)])


def work(title: str, network_name: str) -> None:
    """Prints the extra peak, and when each tracked step began and ended."""
    network = (PAPER | LARGE)[network_name]
    optimizer = CONFIGURATIONS[title].optimizer if title in CONFIGURATIONS else "SGD"
    batch = network.batch()
    imported = read_status("VmRSS")
    with attach(title, TINY.make()) as training:
        for _ in range(STEPS):
            training(*TINY.batch(len(batch[1])))
    reset_peak()
    warmed = read_status("VmRSS")
    model = network.make()
    plain = Training(model, optimizer)
    for _ in range(STEPS):
        plain(*batch)
    untracked, moments = read_status("VmHWM"), []
    del plain
    with attach(title, model) as training:
        for _ in range(STEPS):
            time.sleep(0.05)
            began = time.monotonic()
            training(*batch)
            moments.append((began, time.monotonic()))
    time.sleep(0.05)
    extra = read_status("VmHWM") - untracked
    result = {"extra": extra, "untracked": untracked, "once": warmed - imported, "steps": moments}
    print(json.dumps(result))


# ---- outside ---------------------------------------------------------------------------------------------------------


def start(title: str, network: str, threads: int, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.memory", "--worker", title, "--network", network]
    if title.startswith(OLD):
        command = against_2021.make_command(title.removeprefix(OLD), network, "--rounds", "1")
    variables = {**os.environ, "OMP_NUM_THREADS": str(threads), **environment}
    return subprocess.Popen(command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str], title: str) -> dict[str, Any]:
    output, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"measuring {title} failed; its message is above")
    return json.loads(output.splitlines()[-1])


def measure_peak(title: str, options: Namespace) -> dict[str, Any]:
    found = [finish(start(title, options.network, options.threads), title) for _ in range(options.rounds)]
    keys = {"extra": "extra MB", "untracked": "untracked MB", "once": "once per process MB"}
    return {name: summarise([run[key] for run in found]) for key, name in keys.items()}


def sample(title: str, options: Namespace) -> dict[str, list[float]]:
    """Milliseconds since the last step began, and MB above the level between steps."""
    process = start(title, options.network, options.threads, **EAGER)
    watched, samples = psutil.Process(process.pid), []
    while process.poll() is None:
        try:
            samples.append((time.monotonic(), watched.memory_info().rss / 2**20))
        except psutil.Error:
            break
        time.sleep(0.001)
    began, ended = finish(process, title)["steps"][-1]
    inside = np.array([(t - began, mb) for t, mb in samples if began - 0.02 <= t <= ended + 0.02])
    level = inside[inside[:, 0] < 0, 1]
    inside[:, 1] -= level[-1] if len(level) else inside[0, 1]
    return thin(1e3 * inside[:, 0], inside[:, 1])


def thin(x: np.ndarray, y: np.ndarray) -> dict[str, list[float]]:
    """At most ``POINTS`` of them, each the highest of its neighbours: no peak is lost."""
    pieces = np.array_split(np.arange(len(x)), min(POINTS, len(x)))
    best = [piece[np.argmax(y[piece])] for piece in pieces]
    return {"ms": [float(v) for v in x[best]], "MB": [float(v) for v in y[best]]}


def draw(content: dict[str, Any], options: Namespace) -> None:
    from benchmarks.figures import figure

    if not content["lines"]:
        return
    with figure(options.results, "memory_timeline", size=(7, 3.8)) as axes:
        for title, line in content["lines"].items():
            axes.plot(line["ms"], line["MB"], linewidth=1.2, label=f"{title}: {max(line['MB']):.0f} MB")
        axes.set_xscale("symlog", linthresh=100)
        axes.set(xlabel="ms since the step began (logarithmic beyond 100)", ylabel="MB above the level between steps")
        axes.legend(frameon=False, fontsize=8)


def measure_all(
    name: str, part: str, titles: Sequence[str], measure: Callable[[str, Namespace], Any], options: Namespace
) -> None:
    """Each title in turn; what was measured is kept if time runs out."""
    results: dict[str, Any] = {}
    drawing: Draw | None = draw if part == "lines" else None
    with kept(name, {"network": options.network, part: results}, options, drawing) as save:
        for title in titles:
            results[title] = measure(title, options)
            save()
            shown = results[title].get("extra MB", {}).get("median") or max(results[title].get("MB", [0]))
            print(f"  {title:42s} {shown:8.0f} MB", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, rounds=3)
    parser.add_argument("--network", default="cifar10_3c3d", choices=tuple(PAPER | LARGE))
    parser.add_argument("--parts", nargs="+", choices=("peaks", "timelines"), default=["peaks", "timelines"])
    parser.add_argument("--worker", help="for the fresh process: what to measure there")
    options = parse(parser, arguments)
    if options.worker:
        work(options.worker, options.network)
        return
    if options.quick:
        options.network = "mnist_logreg"
    if "peaks" in options.parts:
        print(f"extra peak memory of a tracked step, {options.network}", flush=True)
        measure_all("memory_peaks", "rows", PEAKS[1:2] if options.quick else PEAKS, measure_peak, options)
    if "timelines" in options.parts:
        print("highest point within one step, above the level between steps", flush=True)
        lines = [title for title in TIMELINES if against_2021.PYTHON.exists() or not title.startswith(OLD)]
        measure_all("memory_timelines", "lines", lines[1:2] if options.quick else lines, sample, options)


if __name__ == "__main__":
    main()

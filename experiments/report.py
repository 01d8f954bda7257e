"""What every experiment ends with: the claim, the paper's number, ours, whether it holds; and a picture."""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import matplotlib
import torch

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from cockpit_core._version import __version__

RESULTS = Path(__file__).resolve().parent / "results"
BLUE, ORANGE, GREY = "#1f77b4", "#ff7f0e", "#888888"


@dataclass(frozen=True)
class Claim:
    """``paper`` and ``ours`` are words with numbers; ``holds`` is None where it could not be examined."""

    text: str
    paper: str
    ours: str
    holds: bool | None


@dataclass
class Experiment:
    """One figure of the paper (numbers of the NeurIPS version)."""

    number: int
    title: str
    settings: str
    quick: bool
    claims: list[Claim] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def claim(self, text: str, paper: str, ours: str, holds: bool | None) -> None:
        self.claims.append(Claim(text, paper, ours, holds))
        verdict = {True: "holds", False: "DOES NOT HOLD", None: "not examined"}[holds]
        print(f"  {text}\n    paper: {paper}\n    here:  {ours}\n    {verdict}", flush=True)

    def remark(self, text: str) -> None:
        self.remarks.append(text)
        print(f"  {text}", flush=True)


@dataclass(frozen=True)
class Arguments:
    quick: bool
    data: str | None
    logdir: Path


def run(number: int, title: str, carry_out: Callable[[Arguments], tuple[Experiment, Figure]]) -> None:
    """Parse the options, carry the experiment out, write its result and its picture."""
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--quick", action="store_true", help="fewer steps, rates or seeds: minutes at most")
    parser.add_argument("--data", metavar="FOLDER", help="your data, as torchvision stores them")
    parser.add_argument("--output", type=Path, default=RESULTS, help="default: experiments/results")
    parser.add_argument("--logdir", type=Path, help="keep the runs here; default: a folder that is deleted")
    given = parser.parse_args()
    print(f"Figure {number}: {title}", flush=True)
    began = time.perf_counter()
    with make_logdir(given.logdir) as logdir:
        experiment, figure = carry_out(Arguments(given.quick, given.data, Path(logdir)))
    given.output.mkdir(parents=True, exist_ok=True)
    name = f"figure_{number:02}"
    figure.savefig(given.output / f"{name}.png", dpi=80)
    plt.close(figure)
    seconds = time.perf_counter() - began
    content = {**asdict(experiment), "seconds": round(seconds, 1), "machine": describe_machine()}
    (given.output / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n", "utf-8")
    print(f"  {seconds:.0f} s; {given.output / name}.png", flush=True)


def make_logdir(chosen: Path | None):
    import contextlib
    import tempfile

    if chosen is None:
        return tempfile.TemporaryDirectory(prefix="cockpit-experiment-")
    chosen.mkdir(parents=True, exist_ok=True)
    return contextlib.nullcontext(str(chosen))


def describe_machine() -> str:
    threads = torch.get_num_threads()
    words = "1 thread" if threads == 1 else f"{threads} threads"
    return f"{words}, {platform.machine()}, torch {torch.__version__}, cockpit {__version__}"


def make_figure(columns: int, height: float = 3.2) -> tuple[Figure, list]:
    figure, axes = plt.subplots(1, columns, figsize=(3.6 * columns, height), layout="constrained")
    return figure, [axes] if columns == 1 else list(axes)

"""``cockpit demo``: a small convolutional network learns scikit-learn's digits, with every instrument switched on."""

from __future__ import annotations

import math
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import numpy as np
import torch
from torch import Tensor, nn

import cockpit_core
from cockpit_core import quantities, schedules
from cockpit_core.events.data import get_values
from cockpit_core.quantities.cabs import CABS
from cockpit_core.quantities.early_stopping import EarlyStopping
from cockpit_core.quantities.mean_gsnr import MeanGSNR
from cockpit_core.report.terminal import format_number, format_table

if TYPE_CHECKING:
    from cockpit_core.tracking.run import Run

BATCH_SIZE = 128
LEARNING_RATE = 0.1
SUMMARY = ("Loss", "train_accuracy", "valid_accuracy", "GradNorm", "Alpha", "HessMaxEV", "HessTrace", "CABS")


class Digits:
    """1,797 handwritten digits, 8 x 8 pixels each: comes with scikit-learn, needs no download."""

    def __init__(self) -> None:
        from sklearn.datasets import load_digits

        data = load_digits()
        order = np.random.default_rng(0).permutation(len(data.target))
        pixels = (data.images[order] - data.images.mean()) / data.images.std()
        inputs = torch.tensor(pixels, dtype=torch.float32).unsqueeze(1)  # [1797, 1, 8, 8]
        labels = torch.tensor(data.target[order])
        self.inputs, self.labels = inputs[:1408], labels[:1408]
        self.valid_inputs, self.valid_labels = inputs[1408:], labels[1408:]
        self.steps_per_epoch = len(self.labels) // BATCH_SIZE

    def iterate(self, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(0)
        for step in range(steps):
            if step % self.steps_per_epoch == 0:
                batches = torch.randperm(len(self.labels), generator=generator).split(BATCH_SIZE)
            batch = batches[step % self.steps_per_epoch]
            yield self.inputs[batch], self.labels[batch]


def make_network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


def measure_accuracy(model: nn.Module, inputs: Tensor, labels: Tensor) -> float:
    with torch.no_grad():
        return float((model(inputs).argmax(1) == labels).float().mean())


def choose_logdir() -> Path:
    """runs/digits, or the first of runs/digits-2, -3, ... that is free: a demo never asks and never overwrites."""
    path, number = Path("runs/digits"), 1
    while path.exists():
        number += 1
        path = Path(f"runs/digits-{number}")
    return path


class Progress:
    """One line that is rewritten on a terminal; elsewhere a line for every tenth of the way."""

    def __init__(self, total: int, stream: TextIO) -> None:
        self.total, self.stream, self.live = total, stream, stream.isatty()
        self.width = 0

    def show(self, step: int, loss: float, accuracy: float, share: float) -> None:
        tenth = max(self.total // 10, 1)
        if not self.live and step % tenth and step != self.total:
            return
        done = 20 * step // self.total
        bar = "#" * done + "." * (20 - done)
        line = f"[{bar}] {step}/{self.total}  loss {loss:.4f}  accuracy {accuracy:.1%}  tracking {share:.0%} of time"
        self.stream.write(("\r" + line.ljust(self.width)) if self.live else line + "\n")
        self.stream.flush()
        self.width = len(line)

    def close(self) -> None:
        if self.live:
            self.stream.write("\n")


def make_instruments(fast: bool) -> list[quantities.Quantity]:
    """All of "full", and three quantities that no configuration contains."""
    return [*quantities.configuration("economy" if fast else "full"), CABS(), EarlyStopping(), MeanGSNR()]


def train(digits: Digits, logdir: Path, steps: int, fast: bool, progress: Progress) -> Run:
    """A plain training loop; ours are the lines with ``run`` in them."""
    model, loss_fn = make_network(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    # Training changes fast in the beginning and slowly later; so does the distance between two measurements.
    schedule = schedules.logarithmic(0, math.log10(max(steps - 1, 1)), steps=60)
    run = cockpit_core.track(
        model,
        loss_fn,
        optimizer,
        logdir=logdir,
        config=make_instruments(fast),
        schedule=schedule,
        steps_per_epoch=digits.steps_per_epoch,
    )
    with run:
        accuracy = 0.0
        for step, (inputs, labels) in enumerate(digits.iterate(steps), start=1):
            optimizer.zero_grad()
            loss = loss_fn(model(inputs), labels)
            loss.backward()
            optimizer.step()
            if step % digits.steps_per_epoch == 0 or step == steps:
                accuracy = measure_accuracy(model, digits.valid_inputs, digits.valid_labels)
                run.log(valid_accuracy=accuracy, train_accuracy=measure_accuracy(model, digits.inputs, digits.labels))
            progress.show(step, loss.item(), accuracy, run.cost_share)
            if run.should_stop:
                break
    return run


def run_demo(logdir: Path | None = None, *, steps: int = 300, fast: bool = False, stream: TextIO | None = None) -> Path:
    """Trains, writes a run into ``logdir``, and says on ``stream`` how to look at it."""
    out = stream or sys.stdout
    steps = min(steps, 60) if fast else steps
    logdir = logdir or choose_logdir()
    torch.manual_seed(0)
    digits = Digits()
    out.write(f"A small convolutional network learns {len(digits.labels)} handwritten digits in {steps} steps.\n")
    progress = Progress(steps, out)
    threads = torch.get_num_threads()
    began = time.perf_counter()
    try:
        # For a network this small, threads that wait for each other cost more than they bring.
        torch.set_num_threads(1)
        run = train(digits, logdir, steps, fast, progress)
    finally:
        torch.set_num_threads(threads)
        progress.close()
    summarize(run, time.perf_counter() - began, out)
    show_commands(logdir, out)
    return logdir


def summarize(run: Run, seconds: float, out: TextIO) -> None:
    data = run.data
    measured = len(data.scalars("GradNorm")[0])
    out.write(f"\n{seconds:.1f} s, {run.cost_share:.0%} of it for tracking; {measured} steps were measured.\n")
    rows = []
    for name in SUMMARY:
        steps, values = get_values(data, name)
        if len(values):
            rows.append((f"  {name}", format_number(float(values[-1])), f"at step {steps[-1]}"))
    for line in format_table(rows, "<><"):
        out.write(line + "\n")


def find_command(name: str) -> str | None:
    """How to type the command: its name if the shell finds the same one by it, else its path."""
    beside = Path(sys.executable).with_name(name)
    path = shutil.which(name)
    if not beside.exists():
        return name if path else None
    if path and Path(path).resolve() == beside.resolve():
        return name
    return os.path.relpath(beside) if beside.is_relative_to(Path.cwd()) else str(beside)


def show_commands(logdir: Path, out: TextIO) -> None:
    tensorboard, jupyter = find_command("tensorboard"), find_command("jupyter")
    cockpit = find_command("cockpit") or f"{sys.executable} -m cockpit_core.commands.cli"
    out.write(f"\nThe log is in {logdir}. To look at it:\n")
    out.write(f"  TensorBoard  {tensorboard} --logdir {logdir.parent}    then http://localhost:6006/#cockpit\n")
    start = f"{jupyter} lab" if jupyter else "pip install jupyterlab; jupyter lab"
    out.write(f"  Jupyter      {start}    then, in a notebook beside {logdir.parts[0]}:\n")
    out.write("                 from cockpit_widget import CockpitWidget\n")
    out.write(f"                 CockpitWidget({str(logdir)!r})\n")
    out.write(f"  terminal     {cockpit} show {logdir}\n")
    out.write(f"  one file     {cockpit} report {logdir}\n")

"""What all benchmarks share: a training step to time, and contestants that take turns.

Every number is a median with quartiles over rounds in which each contestant makes one step on the same new batch, in
one process: whatever slows the machine down for a while slows all of them down.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}

Batch = tuple[Tensor, Tensor]
Step = Callable[[Tensor, Tensor], object]
Losses = Callable[[nn.Module, Tensor, Tensor], Tensor]
Row = dict[str, float]


@dataclass(frozen=True)
class Configuration:
    title: str
    config: str
    optimizer: str = "SGD"
    curvature: str = "hessian"
    scale: str = "linear"
    """Of the histograms: the paper's even bins, or logarithmic ones."""
    judged: bool = True
    """With signals and diagnosis, as users meet it; without, the quantities alone."""

    @property
    def expensive(self) -> bool:
        """Takes so long that the cheap ones should not wait for it."""
        return self.config == "full"


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


UNJUDGED = Configuration("economy, SGD, without signals and diagnosis", "economy", judged=False)
OVERHEAD = {**CONFIGURATIONS, UNJUDGED.title: UNJUDGED}
"""What a tracked step costs is measured of one more: the quantities alone."""


class Training:
    """A model, a loss and an optimizer; calling it makes one training step.

    losses: a function of (model, inputs, labels) that gives one loss per sample, for a loss that is not a module.
    """

    def __init__(
        self, model: nn.Module, optimizer: str = "SGD", learning_rate: float = 1e-3, losses: Losses | None = None
    ):
        self.model, self.losses = model, losses
        self.loss_fn: nn.Module | None = nn.CrossEntropyLoss() if losses is None else None
        self.optimizer = getattr(torch.optim, optimizer)(model.parameters(), lr=learning_rate)
        self.run: Any = None

    def __call__(self, inputs: Tensor, labels: Tensor) -> None:
        self.optimizer.zero_grad()
        if self.loss_fn is not None:
            self.loss_fn(self.model(inputs), labels).backward()
        else:
            self.differentiate(inputs, labels)
        self.optimizer.step()

    def differentiate(self, inputs: Tensor, labels: Tensor) -> None:
        assert self.losses is not None
        losses = self.losses(self.model, inputs, labels)
        if self.run is None:
            losses.mean().backward()
        else:
            self.run.backward(losses.mean(), losses)


def quantities_of(config: str, scale: str = "linear") -> list[Any]:
    """Those of a configuration, with bins of this scale in the histograms: rows mean the paper's unless they say otherwise."""
    from cockpit_core import quantities

    return [make_quantity(quantity.name, scale) for quantity in quantities.configuration(config)]


def make_quantity(name: str, scale: str = "linear") -> Any:
    from cockpit_core.quantities import ALL

    return ALL[name](scale=scale) if name in ("GradHist1d", "GradHist2d") else ALL[name]()


@contextmanager
def tracked(training: Training, scale: str = "linear", judged: bool = True, **options: Any) -> Iterator[Training]:
    """Tracked with the options of ``cockpit_core.track``, into a folder that is gone afterwards."""
    import cockpit_core  # not above: the environment of the 2021 tool has none

    if isinstance(options.get("config"), str):
        options["config"] = quantities_of(options["config"], scale)

    with tempfile.TemporaryDirectory() as folder:
        training.run = run = cockpit_core.track(
            training.model, training.loss_fn, training.optimizer, Path(folder) / "run", on_error="raise", **options
        )
        if not judged:
            leave_unjudged(run)
        try:
            yield training
        finally:
            run.close()
            training.run = None


def leave_unjudged(run: Any) -> None:
    """Signals and diagnosis cannot be switched off by a user; what the quantities alone take is measured without them."""
    tracker = run._tracker
    tracker.signals.begin(False)
    tracker.signals.listens = lambda: False  # a loss that is a function would be looked at all the same
    tracker.signals.begin = lambda wanted, outside=False, resting=False: None
    tracker.writing._add_signals = lambda record, state: None
    tracker.log.live.see = lambda header, record: []


# ---- taking turns ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Effort:
    """How often to measure: ``rounds``, or as many of them (``least`` at any rate) as fit into ``seconds``.

    warm: rounds before that, which compile and fill caches.
    """

    rounds: int
    least: int = 1
    seconds: float = float("inf")
    warm: int = 2
    clock: str = "wall"


class Progress:
    """Says how far it is, once that has taken two seconds: in place on a terminal, else a line now and then."""

    def __init__(self, title: str):
        self.title, self.began = title, time.monotonic()
        self.in_place = sys.stderr.isatty()
        self.shown = self.began + 2 - self.pause

    @property
    def pause(self) -> float:
        return 0.5 if self.in_place else 20.0

    def say(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self.shown < self.pause:
            return
        self.shown = now
        text = f"  {self.title}: {done} of {total}, {now - self.began:.0f} s"
        print(
            f"\r{text:<78}" if self.in_place else text, end="" if self.in_place else "\n", file=sys.stderr, flush=True
        )

    def clear(self) -> None:
        if self.in_place and self.shown > self.began:
            print(f"\r{'':78}\r", end="", file=sys.stderr, flush=True)


def take_turns(
    contestants: Mapping[str, Step], make_batch: Callable[[], Batch], effort: Effort
) -> dict[str, list[float]]:
    """Seconds of each step. A round to warm up that takes longer than all of them may is the measurement."""
    progress = Progress(list(contestants)[-1])
    found: list[dict[str, float]] = []
    began = time.monotonic()
    for turn in range(effort.warm + effort.rounds):
        progress.say(turn, effort.warm + effort.rounds)
        found.append(time_round(contestants, make_batch(), CLOCKS[effort.clock]))
        late = time.monotonic() - began > effort.seconds
        if turn < effort.warm:
            if late and effort.least == 1:
                break
            found.clear()
            began = time.monotonic() if turn + 1 == effort.warm else began
        elif late and len(found) >= effort.least:
            break
    progress.clear()
    return {name: [row[name] for row in found] for name in contestants}


def time_round(contestants: Mapping[str, Step], batch: Batch, now: Callable[[], float]) -> dict[str, float]:
    seconds = {}
    for name, step in contestants.items():
        start = now()
        step(*batch)
        seconds[name] = now() - start
    return seconds


def summarise(values: Sequence[float], unit: float = 1.0) -> Row:
    """Median and quartiles, in multiples of ``unit``."""
    low, median, high = np.percentile(values, [25, 50, 75]) / unit
    return {"low": float(low), "median": float(median), "high": float(high)}


def compare(times: dict[str, list[float]], base: str = "untracked") -> dict[str, dict[str, Any]]:
    """Per contestant: seconds, multiples of the base's median, and how many rounds."""
    unit = float(np.median(times[base]))
    return {
        name: {"seconds": summarise(v), "multiple": summarise(v, unit), "rounds": len(v)} for name, v in times.items()
    }

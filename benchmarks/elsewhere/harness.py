"""What all programs share: how a case is written down, seeds, bundled data, optimizers by name."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch


@dataclass(frozen=True)
class Case:
    """One way to run a program: plain, a healthy variant, or a bug of some severity."""

    label: str
    kind: str  # "plain", "healthy", "severe" or "mild"
    accepted: tuple[str, ...] = ()  # names of findings that would name the right cause
    change: dict[str, Any] = field(default_factory=dict)  # what differs from the program's settings

    @property
    def id(self) -> str:
        return self.label if self.kind == "plain" else f"{self.kind}-{self.label}"


def _fault(kind: str, label: str, accept: str | tuple[str, ...] | None, change: dict[str, Any]) -> Case:
    accepted = (label,) if accept is None else (accept,) if isinstance(accept, str) else tuple(accept)
    return Case(label, kind, accepted, change)


def severe(label: str, accept: str | tuple[str, ...] | None = None, **change: Any) -> Case:
    """A bug that should ruin the run. `accept`: right causes, the label itself if left out."""
    return _fault("severe", label, accept, change)


def mild(label: str, accept: str | tuple[str, ...] | None = None, **change: Any) -> Case:
    """The same, for a bug that only costs some quality."""
    return _fault("mild", label, accept, change)


def healthy(label: str, **change: Any) -> Case:
    """A setting that a competent person might choose."""
    return Case(label, "healthy", (), change)


@dataclass
class Program:
    """A training program, its settings and its cases."""

    name: str
    half: str  # "A" to "M"
    train: Callable[[SimpleNamespace, int, str], float]
    settings: dict[str, Any]
    faults: list[Case]
    healthy: list[Case]

    def __post_init__(self) -> None:
        for case in [*self.faults, *self.healthy]:
            unknown = set(case.change) - set(self.settings) - {"bug"}
            if unknown:
                raise ValueError(f"{self.name}: {case.label} changes unknown settings {sorted(unknown)}")

    def cases(self) -> list[tuple[Case, int]]:
        """All cases with their seeds."""
        runs = [(Case("plain", "plain"), seed) for seed in (0, 1, 2)]
        runs += [(case, seed) for case in self.faults for seed in (0, 1)]
        return runs + [(case, 10 + n) for n, case in enumerate(self.healthy)]

    def run_case(self, case: Case, seed: int, logdir: str) -> float:
        """Trains one case; returns the validation error on clean data, where 1.0 is about guessing."""
        random.seed(seed)
        torch.manual_seed(seed)
        options = SimpleNamespace(**{"bug": None, **self.settings, **case.change})
        error = float(self.train(options, seed, logdir))
        return error if math.isfinite(error) else math.inf

    def run(
        self, fault: str | None = None, severity: str = "severe", seed: int = 0, logdir: str = "runs/elsewhere"
    ) -> float:
        """Trains with a bug of this name, or plainly."""
        if fault is None:
            return self.run_case(Case("plain", "plain"), seed, logdir)
        [case] = [case for case in self.faults if case.label == fault and case.kind == severity]
        return self.run_case(case, seed, logdir)


def make_optimizer(name: str, params: Any, lr: float, **more: Any) -> torch.optim.Optimizer:
    """An optimizer by name; options that this optimizer does not have are left out."""
    kind = {
        "sgd": torch.optim.SGD,
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
        "rmsprop": torch.optim.RMSprop,
        "adagrad": torch.optim.Adagrad,
        "nadam": torch.optim.NAdam,
    }[name]
    known = kind.__init__.__code__.co_varnames
    return kind(params, lr=lr, **{key: value for key, value in more.items() if key in known})


def digits(seed: int, train: int = 1347) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """scikit-learn's handwritten digits, 8x8 with values 0 to 16, split by a fixed shuffle: images, labels, and
    those for validation."""
    from sklearn.datasets import load_digits

    data = load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(77))
    x = torch.tensor(data.images, dtype=torch.float32)[order]
    y = torch.tensor(data.target, dtype=torch.long)[order]
    return x[:train], y[:train], x[1347:], y[1347:]


def wrong_rate(scores: torch.Tensor, labels: torch.Tensor, classes: int) -> float:
    """Share of wrong answers, divided by that of guessing; infinite if the scores are not finite."""
    if not torch.isfinite(scores).all():
        return math.inf
    return (scores.argmax(-1) != labels).float().mean().item() / (1 - 1 / classes)


def corrupt(labels: torch.Tensor, share: float, classes: int) -> torch.Tensor:
    """Labels of which a share was replaced by random ones."""
    swap = torch.rand(labels.shape) < share
    return torch.where(swap, torch.randint(0, classes, labels.shape), labels)

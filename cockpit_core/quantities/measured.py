"""What is measured for quantities, in the form they get it: plain values. Quantities need not know who measures
them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cockpit_core.curvature import Eigenpair


@dataclass(frozen=True)
class Units:
    """One activation: what each of its units did on the samples that were looked at."""

    kind: str
    layer: str
    dies: bool
    """Its units can be exactly zero for good, as those of a ReLU."""
    alive: Tensor  # [units] was it ever other than zero?
    sizes: Tensor  # [units] sum of |h|
    elements: int  # per unit
    saturated: float  # elements at the flat ends; NaN where the function has none
    part: float  # of its elements that were looked at

    def add(self, other: Units) -> Units:
        elements = self.elements + other.elements
        part = (self.part * self.elements + other.part * other.elements) / elements
        return replace(
            self, alive=self.alive | other.alive, sizes=self.sizes + other.sizes, elements=elements,
            saturated=self.saturated + other.saturated, part=part,
        )  # fmt: skip


@dataclass(frozen=True)
class Attention:
    """One use of attention: entropies in nats, summed over rows, and the largest product of a query and a key."""

    layer: str
    entropy: float
    rows: int
    largest: float  # NaN where only the weights are known
    part: float

    def add(self, other: Attention) -> Attention:
        rows = self.rows + other.rows
        part = (self.part * self.rows + other.part * other.rows) / rows
        largest = max(self.largest, other.largest)
        return replace(self, entropy=self.entropy + other.entropy, rows=rows, largest=largest, part=part)


@dataclass(frozen=True)
class Scale:
    """Outputs of one layer, or of the model (""): sum of squares of the elements that were looked at."""

    layer: str
    squares: float
    elements: int
    largest: float  # for the model's outputs; NaN for a layer's, where nobody asks for it
    part: float

    def add(self, other: Scale) -> Scale:
        elements = self.elements + other.elements
        part = (self.part * self.elements + other.part * other.elements) / elements
        largest = max(self.largest, other.largest)
        return replace(self, squares=self.squares + other.squares, elements=elements, largest=largest, part=part)


@dataclass
class Activations:
    """The activations of one step, all its micro-batches and processes together; the n-th activation of each pass is
    the same one."""

    units: list[Units] = field(default_factory=list)
    attention: list[Attention] = field(default_factory=list)
    scales: dict[str, Scale] = field(default_factory=dict)
    reason: str = ""

    def add(self, other: Activations) -> None:
        self.units = merge(self.units, other.units, lambda one, two: one.alive.shape == two.alive.shape)
        self.attention = merge(self.attention, other.attention, lambda one, two: True)
        for name, scale in other.scales.items():
            self.scales[name] = self.scales[name].add(scale) if name in self.scales else scale
        self.reason = self.reason or other.reason


def merge(mine: list[Any], others: list[Any], fits: Callable[[Any, Any], bool]) -> list[Any]:
    """Passes of the same network add up one by one; what does not fit is listed separately."""
    same = len(mine) == len(others) and all(
        a.layer == b.layer and fits(a, b) for a, b in zip(mine, others, strict=True)
    )
    return [a.add(b) for a, b in zip(mine, others, strict=True)] if same else [*mine, *others]


@dataclass
class Gram:
    """For the layers seen so far: the sum of their matrices, and each one's share of pairs that disagree."""

    total: Tensor | None = None
    conflicts: dict[str, float] = field(default_factory=dict)
    layers: set[str] = field(default_factory=set)
    chosen: Tensor | None = None
    """Which samples of the batch it has."""
    _asked: tuple[list[int], int] = ([], 0)

    def add(self, name: str, K: Tensor) -> None:
        self.layers.add(name)
        share = share_of_conflicts(K)
        if share is not None:
            self.conflicts[name] = share
        self.total = K.clone() if self.total is None else self.total.add_(K)

    def choose(self, sizes: list[int], most: int) -> None:
        if (sizes, most) == self._asked:
            return
        self._asked = (sizes, most)
        starts = [sum(sizes[:k]) for k in range(len(sizes))]
        counts = choose_samples(sizes, most)
        self.chosen = torch.cat([torch.arange(lo, lo + n) for lo, n in zip(starts, counts, strict=True)])

    def clear(self) -> None:
        self.total, self.conflicts, self.layers, self.chosen, self._asked = None, {}, set(), None, ([], 0)


def choose_samples(sizes: list[int], most: int) -> list[int]:
    """How many of the first samples of each micro-batch: at most this many in all, in proportion."""
    total = sum(sizes)
    return list(sizes) if total <= most else [max(1, size * most // total) if most else 0 for size in sizes]


def share_of_conflicts(K: Tensor) -> float | None:
    """The share of pairs of different samples that have a negative product. None without a pair of gradients."""
    B, values = len(K), K.numpy()
    if B < 2 or not (values.diagonal() > 0).any():
        return None
    return float(np.count_nonzero(values < 0)) / (B * (B - 1))  # the diagonal is never negative


@dataclass(frozen=True)
class ParameterState:
    """One parameter: its optimizer's class, the options of its group, and its own state (moments, count of steps)."""

    optimizer: type[torch.optim.Optimizer]
    options: Mapping[str, Any]
    state: Mapping[str, Any]

    def number(self, name: str) -> float:
        value = self.options[name]
        return float(value.item()) if isinstance(value, Tensor) else float(value)


@dataclass
class Line:
    """The batch's own loss at both ends of its step. ``length`` is that of the step."""

    length: float
    loss_start: float
    slope_start: float
    loss_end: float = math.nan
    slope_end: float = math.nan


@dataclass
class OwnBatch:
    """What was asked for; ``curvatures`` are ``v' H v / v'v`` at ``theta_t`` by direction ("gradient", "update")."""

    line: Line | None = None
    curvatures: dict[str, float] = field(default_factory=dict)
    preconditioned: Eigenpair | None = None
    reasons: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Preconditioner:
    """For one parameter: what the step divided by, elementwise, and the decay that it adds to the gradient."""

    denominators: Tensor
    decay: float = 0.0

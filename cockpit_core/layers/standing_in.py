"""Contributions that stand in for another: one that is still to come, or one that may turn out wrong."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from cockpit_core.kernels import AnyBins, Counts, ParameterBins, Spec
from cockpit_core.kernels.native.reducing import Reduced
from cockpit_core.layers.contribution import Contribution
from cockpit_core.layers.scratch import Scratch


class Later(Contribution):
    """Stands for a contribution that can be made only later in the backward pass."""

    def __init__(self, get: Callable[[], Contribution], samples: int, shape: torch.Size):
        self.get = get
        super().__init__(samples, shape, 1.0)

    def resolve(self) -> Contribution:
        return self.get()

    def make(self, lo: int, hi: int, scratch: Scratch) -> Tensor:
        return self.get().form(lo, hi, scratch)


class Tried(Contribution):
    """A rule that the library's next release may break, and the fallback behind it."""

    def __init__(self, part: Contribution, other: Callable[[], Contribution]):
        self.part, self.other = part, other
        self.moved = False
        super().__init__(part.samples, part.shape, 1.0)

    def resolve(self) -> Contribution:
        self.part = self.part.resolve()
        return self

    def next_way(self) -> bool:
        if self.moved:
            return self.part.next_way()
        self.part, self.moved = self.other(), True
        return True

    def make(self, lo: int, hi: int, scratch: Scratch) -> Tensor:
        return self.part.form(lo, hi, scratch)

    @property
    def floats_per_sample(self) -> int:
        return self.part.floats_per_sample

    def hold(self) -> None:
        self.part.hold()

    def norms(self) -> Tensor | None:
        return self.part.norms()

    def project(self, direction: Tensor) -> Tensor | None:
        return self.part.project(direction)

    def squares(self) -> Tensor | None:
        return self.part.squares()

    def reduce(self, directions: list[Tensor], bins: AnyBins | None, compared: int = 0) -> Reduced | None:
        return self.part.reduce(directions, bins, compared)

    def reduce_at_once(self, directions: list[Tensor], bins: AnyBins | None) -> Reduced | None:
        return self.part.reduce_at_once(directions, bins)

    def compares(self, samples: int) -> bool:
        return self.part.compares(samples)

    def compare(self, samples: int) -> Tensor:
        return self.part.compare(samples)

    def count(self, parameter: ParameterBins | None, spec: Spec, into: Counts) -> bool:
        return self.part.count(parameter, spec, into)

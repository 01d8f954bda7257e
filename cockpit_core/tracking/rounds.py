"""Which calls of ``step`` make one step: several optimizers, optimizers inside others, ``with run.stepping()``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from cockpit_core.tracking.optimizers import find_inner, is_inside_another, may_nest

STEPPING = (lambda: None,)
"""What ``stepping`` calls the hooks with: as ``step`` with a closure, because backward passes may follow."""


class Rounds:
    """With several optimizers a step is one round, from the first optimizer's step to the last one's."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]):
        self.optimizers = list(optimizers)
        self.single = len(self.optimizers) == 1
        self.stepped: set[int] = set()
        families = [(outer, each) for outer in self.optimizers for each in (outer, *find_inner(outer))]
        self.outer_of = {id(each): outer for outer, each in families}
        self.watched = {id(each): each for _, each in families}
        self.nests = any(may_nest(optimizer) for optimizer in self.optimizers)
        self.is_stepping = False  # inside ``one_step``
        self.asks = self.nests  # may a step be part of another one?

    def is_inside(self, args: tuple) -> bool:
        """Does this ``step`` run inside another one that is tracked? Then that is the step."""
        if self.is_stepping:
            return args is not STEPPING
        return self.nests and is_inside_another(self.watched)

    def _key(self, optimizer: Any) -> int:
        return id(self.outer_of.get(id(optimizer), optimizer))

    def breaks(self, optimizer: torch.optim.Optimizer) -> bool:
        """Has it stepped in this round already? Then the round is over, and not all of them took part in it."""
        return self._key(optimizer) in self.stepped

    @property
    def has_begun(self) -> bool:
        return bool(self.stepped)

    def completes(self, optimizer: torch.optim.Optimizer) -> bool:
        """It has stepped: was it the last of the round?"""
        self.stepped.add(self._key(optimizer))
        return len(self.stepped) == len(self.optimizers)

    def begin(self) -> None:
        self.stepped.clear()

    @contextmanager
    def one_step(self) -> Iterator[tuple[torch.optim.Optimizer, tuple]]:
        """What happens in there is one step. Gives what the hooks are to be called with."""
        self.is_stepping = self.asks = True
        try:
            yield self.optimizers[0], STEPPING
        finally:
            self.is_stepping, self.asks = False, self.nests

    def expect_only(self, optimizer: torch.optim.Optimizer) -> None:
        """The next step of this one completes the round."""
        self.stepped = {id(other) for other in self.optimizers if other is not optimizer}

    def owned_parameters(self) -> set[int]:
        """By id: those that the optimizers step."""
        return {id(p) for optimizer in self.optimizers for group in optimizer.param_groups for p in group["params"]}

    def close(self) -> None:
        self.optimizers, self.outer_of, self.watched = [], {}, {}


def has_closure(args: tuple, kwargs: dict) -> bool:
    """``optimizer.step(closure)``; the hooks get the optimizer itself among the arguments."""
    return any(callable(a) and not isinstance(a, torch.optim.Optimizer) for a in (*args, kwargs.get("closure")))

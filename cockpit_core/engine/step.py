"""The state of one optimizer step, from its first forward to the return of ``optimizer.step``."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from cockpit_core.engine.capture import Pass
from cockpit_core.engine.plan import Plan
from cockpit_core.engine.reduce import LayerStatistics
from cockpit_core.layers.contribution import Contribution


@dataclass(eq=False)
class StepState:
    """Everything that belongs to one step and is freed with it."""

    plan: Plan
    deferred: bool = False
    """Several backward passes may come: reduce at the step, when the size of the batch is known, not in the pass."""
    passes: list[Pass] = field(default_factory=list)
    open: Pass | None = None
    before: dict[str, Tensor | None] = field(default_factory=dict)
    """``p.grad`` when the step's first backward pass began: what a forgotten ``zero_grad`` left there."""
    reduced: dict[str, LayerStatistics] = field(default_factory=dict)
    kept: dict[str, list[Contribution]] = field(default_factory=dict)
    """Contributions that wait for the step, to be projected on it."""
    gradients: dict[str, Tensor] = field(default_factory=dict)
    gradient_norms: dict[str, float] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    """Layers whose individual gradients could not be had at this step, with the reason."""
    no_value: dict[str, str] = field(default_factory=dict)
    diagonals: dict[str, Any] = field(default_factory=dict)
    eigenpairs: dict[str, Any] = field(default_factory=dict)
    theta: dict[str, Tensor] = field(default_factory=dict)
    measured: bool = False
    in_closure: bool = False
    began: float = field(default_factory=time.perf_counter)
    overhead: float = 0.0

    @property
    def batch_size(self) -> int:
        return sum(found.batch_size for found in self.passes)

    @property
    def loss(self) -> float:
        """The scalar that was differentiated: the micro-batches' losses, each with the user's own factor."""
        return sum(found.loss for found in self.passes)

    def losses(self) -> Tensor | None:
        """``l_n`` of the whole batch, mean ``L``. A pass's own have the mean of its part: each counts B / B_k."""
        parts = [found.losses for found in self.passes]
        if not parts or any(part is None for part in parts):
            return None
        total = self.batch_size
        scaled = [part * (total / found.batch_size) for part, found in zip(parts, self.passes, strict=True)]  # type: ignore[operator]
        return torch.cat([part.double() for part in scaled])

    def why_no_losses(self) -> str:
        return next((found.no_losses for found in self.passes if found.no_losses), "no loss was captured")

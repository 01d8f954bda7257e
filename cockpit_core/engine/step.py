"""The state of one optimizer step, from its first forward to the return of ``optimizer.step``."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cockpit_core.distributed.joining import Batch
from cockpit_core.engine.again import Again
from cockpit_core.engine.capture import Pass
from cockpit_core.engine.place import Place
from cockpit_core.engine.plan import Plan
from cockpit_core.engine.statistics import LayerStatistics
from cockpit_core.foundation.sharded import is_sharded
from cockpit_core.foundation.transfer import Transfer
from cockpit_core.layers.scratch import Scratch
from cockpit_core.quantities.measured import Activations, Gram


class GradientMark(NamedTuple):
    """Tells whether ``p.grad`` has been replaced or written into since."""

    gradient: Tensor | None
    version: int

    @classmethod
    def of(cls, p: Tensor) -> GradientMark:
        return cls(p.grad, -1 if p.grad is None else p.grad._version)

    def fits(self, p: Tensor) -> bool:
        if is_sharded(p.grad):
            return False  # writing into a shard leaves no trace
        return p.grad is self.gradient and (p.grad is None or p.grad._version == self.version)


@dataclass(eq=False)
class StepState:
    """Everything that belongs to one step and is freed with it."""

    plan: Plan
    deferred: bool = False
    """Several backward passes may come: reduce at the step, when the size of the batch is known, not in the pass."""
    passes: list[Pass] = field(default_factory=list)
    open: Pass | None = None
    ended: Pass | None = None
    """The pass that ended last, as it was before it was added to another."""
    before: dict[str, Tensor | None] = field(default_factory=dict)
    """``p.grad`` when the step's first backward pass began: what a forgotten ``zero_grad`` left there."""
    reduced: dict[str, LayerStatistics] = field(default_factory=dict)
    scratch: Scratch = field(default_factory=Scratch)
    transfer: Transfer = field(default_factory=Transfer)
    """What is wanted on the host."""
    activations: Activations = field(default_factory=Activations)
    ids: list[np.ndarray] = field(default_factory=list)
    """Ids of the samples, as far as the user has given them (``run.batch(ids=...)``)."""
    gram: Gram = field(default_factory=Gram)
    again: Again = field(default_factory=Again)
    """What it takes to evaluate the losses of this step once more."""
    gradients: dict[str, Tensor] = field(default_factory=dict)
    gradient_norms: dict[str, float] = field(default_factory=dict)
    seen_norms: dict[str, tuple[float, GradientMark]] = field(default_factory=dict)
    """Norms of gradients that the check has measured already."""
    marks: dict[str, GradientMark] = field(default_factory=dict)
    """Marks of ``p.grad`` at the end of the backward pass."""
    copied: bool = False
    """``gradients`` are copies; if not, they are ``p.grad`` itself, and right as long as nobody writes into it."""
    swapped: set[str] = field(default_factory=set)
    """Parameters in whose place a module has worked with another tensor, computed from it."""
    failures: dict[str, str] = field(default_factory=dict)
    """Layers without individual gradients at this step, with the reason."""
    no_value: dict[str, str] = field(default_factory=dict)
    diagonals: dict[str, Any] = field(default_factory=dict)
    eigenpairs: dict[str, Any] = field(default_factory=dict)
    curvature_part: str = ""
    theta: dict[str, Tensor] = field(default_factory=dict)
    entangled: str = ""
    """Why the passes cannot be told apart, where they cannot."""
    measured: bool = False
    place: Place | None = None
    """Where the parameters were at the first backward pass."""
    elsewhere: Place | None = None
    """Where they were at a further one that does not count, because they had been moved in between."""
    joint: Batch | None = None
    """Batch size, loss and individual losses of all processes; None where those of this one are all there are."""
    in_closure: bool = False

    loss_scale: float = 1.0
    """What a GradScaler multiplied the loss with; all numbers are divided by it."""
    scaled_late: bool = False
    """The GradScaler was noticed only at the step."""
    half: bool = False
    """Gradients in half precision were seen: contributions add up less exactly."""
    interacts: str = ""
    """Why the loss is not a sum over samples, where it is not."""
    stale: bool = False
    """``zero_grad`` was forgotten: the optimizer's gradient is not this step's."""

    def unscale(self, scale: float) -> None:
        """A GradScaler was noticed only at the step: divide what was taken with its factor in it."""
        self.loss_scale, self.scaled_late = scale, True
        for pass_ in self.passes:
            pass_.loss /= scale
            pass_.losses = None if pass_.losses is None else pass_.losses / scale
        self.gradient_norms = {name: norm / scale for name, norm in self.gradient_norms.items()}
        self.gradients = {name: gradient / scale for name, gradient in self.gradients.items()}
        self.diagonals = {kind: diagonal.scaled(1 / scale) for kind, diagonal in self.diagonals.items()}
        for kind, pair in self.eigenpairs.items():
            self.eigenpairs[kind] = replace(pair, value=pair.value / scale, residual=pair.residual / scale)

    def discard(self) -> None:
        """The gradients were zeroed before the optimizer stepped: what was captured no longer counts."""
        self.place = self.elsewhere = self.ended = None
        self.entangled = ""
        for part in (
            self.passes,
            self.reduced,
            self.scratch,
            self.failures,
            self.no_value,
            self.diagonals,
            self.eigenpairs,
            self.gram,
        ):
            part.clear()

    @property
    def backward_passes(self) -> int:
        """Includes those that went through the same calls once more and were added to the first."""
        return sum(pass_.count for pass_ in self.passes)

    @property
    def batch_size(self) -> int:
        if self.joint is not None:
            return self.joint.size
        return sum(pass_.batch_size for pass_ in self.passes)

    @property
    def loss(self) -> float:
        """The scalar that was differentiated: the micro-batches' losses, each with the user's own factor."""
        if self.joint is not None:
            return self.joint.loss
        return sum(pass_.loss for pass_ in self.passes)

    def losses(self) -> Tensor | None:
        """``l_n`` of the whole batch, mean ``L``. A pass's own have the mean of its part: each counts B / B_k."""
        if self.joint is not None:
            return self.joint.losses
        parts = [pass_.losses for pass_ in self.passes]
        if not parts or any(part is None for part in parts):
            return None
        if len(parts) == 1 and parts[0] is not None:
            return parts[0] if parts[0].dtype == torch.float64 else parts[0].double()
        total = self.batch_size
        pairs = zip(parts, self.passes, strict=True)
        return torch.cat([part.double() * (total / pass_.batch_size) for part, pass_ in pairs if part is not None])

    def batch(self) -> Batch:
        """What all passes of this process have seen together."""
        return Batch(self.backward_passes, self.batch_size, self.loss, self.losses(), self.why_no_losses())

    def why_unmeasured(self) -> str:
        """Why there are no individual gradients, where that is known. The first failure stands for all."""
        asked = bool(self.plan.needs & {"norms", "dots", "squares", "histogram"})
        if "individual" in self.no_value or not asked or any(s.is_measured for s in self.reduced.values()):
            return self.no_value.get("individual", "")
        return next(iter(self.failures.values()), "")

    def labels(self) -> Tensor | None:
        """Labels of the whole batch, as the loss was given them."""
        parts = [pass_.labels for pass_ in self.passes]
        if not parts or any(part is None for part in parts):
            return None
        return parts[0] if len(parts) == 1 else torch.cat([part for part in parts if part is not None])

    def why_no_losses(self) -> str:
        if self.joint is not None:
            return self.joint.no_losses
        reasons = (pass_.no_losses or pass_.no_losses_yet for pass_ in self.passes)
        return next((reason for reason in reasons if reason), "no loss was captured")

"""What is known of a loss when its backward pass begins, and the outputs of the model that it was computed from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from cockpit_core.engine.capture import Pass
from cockpit_core.engine.forward import Forward
from cockpit_core.engine.loss.differentiated import Reading
from cockpit_core.engine.loss.roots import Root

MOST_OUTPUTS = 31
"""Of the model, in one step, that are held for curvature: evaluating without ``no_grad`` must not fill the memory."""


@dataclass(eq=False)
class Output:
    """One tensor that the model gave: by which call, at which place among all tensors that it gave, with its graph.
    Of a layer, if there is no call of the model."""

    forward: Forward | None
    position: int
    tensor: Tensor


@dataclass(eq=False)
class Prepared:
    """What is known of a root when its backward pass begins."""

    root: Root
    origin: tuple[int, int]
    plain: bool
    """It consists of losses of the tracked loss module alone."""
    by_module: bool
    """At least a part of it does."""
    reading: Reading | None = None
    shared: dict[str, Tensor] = field(default_factory=dict)
    handles: list[Any] = field(default_factory=list)
    opened: bool = False

    @property
    def value(self) -> float:
        """Reading it waits for the device."""
        return self.root.value


def correct_loss(passes: list[Pass], ended: Pass, value: float) -> None:
    """The loss module's part is not all: a constant was added to it, which belongs to no sample in particular. ``ended`` is
    one of the passes, or was added to one."""
    if abs(ended.loss - value) <= 1e-6 * max(abs(value), abs(ended.loss)):
        return
    for found in (own for own in passes if own is ended or ended.task in own.further):
        found.loss = value if found is ended else found.loss - ended.loss + value
        if found.losses is not None:
            found.losses, found.no_losses = None, "a constant is added to the loss, and no graph tells to which samples"

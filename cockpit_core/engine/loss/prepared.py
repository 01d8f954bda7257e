"""What is known of a loss when its backward pass begins, and the outputs of the model that it was computed from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from cockpit_core.engine.capture import Pass, add_up
from cockpit_core.engine.forward import Forward
from cockpit_core.engine.loss.differentiated import Reading
from cockpit_core.engine.loss.graph import Terms
from cockpit_core.engine.loss.roots import Root

MOST_OUTPUTS = 31
"""How many outputs of the model are held for curvature in one step: evaluating without ``no_grad`` must not fill the
memory."""


@dataclass(eq=False)
class Output:
    """One tensor that the model gave: by which call, at which place among all tensors that it gave, with its graph.
    It is that of a layer if the model was not called."""

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
    parts: Terms = field(default_factory=Terms)
    labels: Tensor | None = None
    """Class of each sample, where its graph has kept them."""
    again: Any = None
    """How to evaluate it once more (``again.Evaluation``), if somebody will."""
    shared: dict[str, Tensor] = field(default_factory=dict)
    handles: list[Any] = field(default_factory=list)
    opened: bool = False
    ended: bool = False
    """The backward pass has come to its end, and what it has captured waits to be reduced."""

    def note_end(self) -> None:
        self.ended = True

    @property
    def is_penalty(self) -> bool:
        """Is all of it a function of the parameters alone?"""
        terms = self.parts.terms
        return bool(terms) and all(term.shared for term in terms) and not (self.parts.given or self.by_module)

    @property
    def value(self) -> float:
        """Reading it waits for the device."""
        return self.root.value


def correct_loss(passes: list[Pass], ended: Pass, value: float) -> None:
    """The loss module's part is not all: a constant was added to it, which belongs to no sample in particular. ``ended`` is
    one of the passes, or was added to one."""
    if abs(ended.loss - value) <= 1e-6 * max(abs(value), abs(ended.loss)):
        return
    for pass_ in (own for own in passes if own is ended or ended.task in own.further):
        pass_.loss = value if pass_ is ended else pass_.loss - ended.loss + value
        if pass_.losses is not None:
            pass_.losses, pass_.no_losses = None, "a constant is added to the loss, and no graph tells to which samples"


def spread_penalties(passes: list[Pass]) -> None:
    """A penalty that was differentiated by itself has no samples: it counts alike for all that the step has."""
    alone, rest = [one for one in passes if one.is_penalty], [one for one in passes if not one.is_penalty]
    if not alone or not rest:
        return
    total = sum(one.batch_size for one in rest)
    for penalty in alone:
        for one in rest:
            share = one.batch_size / total
            add_up(one.shared, {name: share * gradient for name, gradient in penalty.shared.items()})
            one.loss += share * penalty.loss
            one.no_losses = one.no_losses or penalty.no_losses
            one.losses = None if one.losses is None or one.no_losses else one.losses + share * penalty.loss
        rest[0].further |= {penalty.task, *penalty.further}
    passes[:] = rest

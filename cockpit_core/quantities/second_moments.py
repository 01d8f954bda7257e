"""The denominators of optimizers that divide by a root of second moments, as their last step used them.

Adam and AdamW: ``sqrt(v / (1 - beta2^k)) + eps`` (Kingma and Ba 2015), with ``amsgrad`` the largest v so far. NAdam divides
by the same. RMSprop: ``sqrt(v) + eps``, centred ``sqrt(v - m^2) + eps``. Adagrad: ``sqrt(sum) + eps``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cockpit_core.quantities.base import NoValue
from cockpit_core.quantities.measured import Preconditioner

if TYPE_CHECKING:
    from cockpit_core.quantities.measured import ParameterState


@dataclass(frozen=True)
class Moments:
    """A step was divided by ``factor * sqrt(squares)``, elementwise, before eps is added. The optimizer's own tensor."""

    squares: Tensor
    factor: float = 1.0


def count_of(state: ParameterState) -> float:
    step: Any = state.state["step"]
    return float(step.item()) if isinstance(step, Tensor) else float(step)


def adam(state: ParameterState) -> Moments:
    moments = state.state["max_exp_avg_sq" if state.options.get("amsgrad") else "exp_avg_sq"]
    beta2 = float(state.options["betas"][1])
    return Moments(moments, 1 / math.sqrt(1 - beta2 ** count_of(state)))


def rmsprop(state: ParameterState) -> Moments:
    squares = state.state["square_avg"]
    if state.options.get("centered"):
        return Moments((squares - state.state["grad_avg"].square()).clamp(min=0))
    return Moments(squares)


def adagrad(state: ParameterState) -> Moments:
    return Moments(state.state["sum"])


MOMENTS: dict[type[torch.optim.Optimizer], Callable[[ParameterState], Moments]] = {
    torch.optim.Adam: adam,
    torch.optim.AdamW: adam,
    torch.optim.NAdam: adam,
    torch.optim.RMSprop: rmsprop,
    torch.optim.Adagrad: adagrad,
}


def find_moments(state: ParameterState) -> Moments:
    """What this step divided by; NoValue where the optimizer keeps no second moments that are known here."""
    find = next((find for kind, find in MOMENTS.items() if issubclass(state.optimizer, kind)), None)
    if find is None:
        known = ", ".join(kind.__name__ for kind in MOMENTS)
        raise NoValue(f"{state.optimizer.__name__} has no second moments that are known here (known: {known})")
    try:
        return find(state)
    except KeyError as error:
        raise NoValue(f"the state of {state.optimizer.__name__} has no {error} yet") from error


def find_roots(state: ParameterState) -> Tensor:
    """Without eps."""
    moments = find_moments(state)
    return moments.squares.sqrt() * moments.factor


def find_preconditioners(states: Mapping[str, ParameterState]) -> dict[str, Preconditioner]:
    """``sqrt(v) + eps`` of each parameter, and the decay that its optimizer adds to the gradient (not decoupled)."""
    made = {}
    for name, state in states.items():
        decoupled = issubclass(state.optimizer, torch.optim.AdamW) or state.options.get("decoupled_weight_decay")
        decay = 0.0 if decoupled else state.number("weight_decay")
        made[name] = Preconditioner(find_roots(state) + state.number("eps"), decay)
    if not made:
        raise NoValue("no parameter has a gradient")
    return made

"""The denominators of optimizers that divide by a root of second moments, as their last step used them.

Adam and AdamW: ``sqrt(v / (1 - beta2^k)) + eps`` (Kingma and Ba 2015), with ``amsgrad`` the largest v so far. NAdam divides
by the same. RMSprop: ``sqrt(v) + eps``, centred ``sqrt(v - m^2) + eps``. Adagrad: ``sqrt(sum) + eps``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cockpit_core.quantities.base import NoValue
from cockpit_core.quantities.measured import Preconditioner

if TYPE_CHECKING:
    from cockpit_core.quantities.measured import ParameterState

Roots = Callable[["ParameterState"], Tensor]


def count_of(state: ParameterState) -> float:
    step: Any = state.state["step"]
    return float(step.item()) if isinstance(step, Tensor) else float(step)


def adam(state: ParameterState) -> Tensor:
    moments = state.state["max_exp_avg_sq" if state.options.get("amsgrad") else "exp_avg_sq"]
    beta2 = float(state.options["betas"][1])
    return moments.sqrt() / math.sqrt(1 - beta2 ** count_of(state))


def rmsprop(state: ParameterState) -> Tensor:
    squares = state.state["square_avg"]
    if state.options.get("centered"):
        return (squares - state.state["grad_avg"].square()).clamp(min=0).sqrt()
    return squares.sqrt()


def adagrad(state: ParameterState) -> Tensor:
    return state.state["sum"].sqrt()


ROOTS: dict[type[torch.optim.Optimizer], Roots] = {
    torch.optim.Adam: adam,
    torch.optim.AdamW: adam,
    torch.optim.NAdam: adam,
    torch.optim.RMSprop: rmsprop,
    torch.optim.Adagrad: adagrad,
}


def find_roots(state: ParameterState) -> Tensor:
    """What this step divided by, without eps; NoValue where the optimizer keeps no second moments that are known here."""
    roots = next((roots for kind, roots in ROOTS.items() if issubclass(state.optimizer, kind)), None)
    if roots is None:
        known = ", ".join(kind.__name__ for kind in ROOTS)
        raise NoValue(f"{state.optimizer.__name__} has no second moments that are known here (known: {known})")
    try:
        return roots(state)
    except KeyError as error:
        raise NoValue(f"the state of {state.optimizer.__name__} has no {error} yet") from error


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

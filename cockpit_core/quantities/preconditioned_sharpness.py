from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from cockpit_core.quantities.base import NoValue, Quantity, Statistics, Value

if TYPE_CHECKING:
    from cockpit_core.quantities.measured import ParameterState


class PreconditionedSharpness(Quantity):
    """Is an adaptive optimizer at its edge of stability? The largest eigenvalue of ``P^-1 H``, P its denominators.

    ``P = diag(sqrt(v) + eps)`` as step t used it, H of this batch at the start of the step; decay that the optimizer adds
    to the gradient counts into H. Adam hovers at ``(2 + 2 beta1) / ((1 - beta1) lr)`` (Cohen et al. 2022, arXiv
    2207.14484), 38 / lr with its defaults; RMSprop and Adagrad at ``2 (1 + momentum) / lr``; decoupled decay w lowers it
    by the factor ``1 - lr w / 2``. "PreconditionedSharpness/ratio" is the value over that limit, where all parameters
    share one: at 1 the steps begin to grow. By Lanczos; the error is the residual. Expensive, some ten to thirty double
    backward passes. No value for optimizers without second moments: for SGD, that is HessMaxEV.
    """

    needs = ("gradients", "update", "optimizer", "preconditioned")
    description = "Largest eigenvalue of the Hessian as Adam sees it, with its edge of stability."
    question = "is Adam at its edge of stability?"
    formula = "largest eigenvalue of `P^-1 H`; `/ratio` to its limit"
    cost = "ten to thirty double backward passes"

    def measure(self, statistics: Statistics) -> Value:
        own = statistics.own_batch
        if own is None or own.preconditioned is None:
            raise NoValue(
                "it was not measured" if own is None else own.reasons.get("preconditioned", "it was not measured")
            )
        pair = own.preconditioned
        value = Value(pair.value, error=pair.residual, method=f"Lanczos residual, {pair.products} products")
        limit = find_limit({n: statistics.optimizer[n] for n in statistics.update})
        if limit is not None:
            value.parts["ratio"] = Value(pair.value / limit, error=pair.residual / limit)
        return value


def find_limit(states: Mapping[str, ParameterState]) -> float | None:
    """The largest eigenvalue at which steps do not grow; None where parameters differ, or no limit is known."""
    limits = {limit_of(state) for state in states.values()}
    return limits.pop() if len(limits) == 1 else None


def limit_of(state: ParameterState) -> float | None:
    rate = state.number("lr")
    if not rate > 0:
        return None
    if issubclass(state.optimizer, (torch.optim.Adam, torch.optim.AdamW)):
        beta = float(state.options["betas"][0])
        decay = state.number("weight_decay") if is_decoupled(state) else 0.0
        return (1 + beta) * (2 - rate * decay) / ((1 - beta) * rate)
    if issubclass(state.optimizer, torch.optim.RMSprop):
        return 2 * (1 + state.number("momentum")) / rate
    if issubclass(state.optimizer, torch.optim.Adagrad) and state.number("lr_decay") == 0:
        return 2 / rate
    return None


def is_decoupled(state: ParameterState) -> bool:
    return issubclass(state.optimizer, torch.optim.AdamW) or bool(state.options.get("decoupled_weight_decay"))

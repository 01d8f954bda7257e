from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cockpit_core.foundation.sharded import whole
from cockpit_core.kernels.native.reducing import can_reduce
from cockpit_core.kernels.native.shares import sum_shares
from cockpit_core.quantities.base import NoValue, Quantity, Statistics, Value
from cockpit_core.quantities.second_moments import Moments, find_moments

if TYPE_CHECKING:
    from cockpit_core.quantities.measured import ParameterState


class EpsilonShare(Quantity):
    """Does Adam still adapt, or does eps decide? Mean over elements of ``eps / (sqrt(v) + eps)``, ``v`` bias-corrected.

    The denominator is the one that step t divided by. Near 0 each element has a step size of its own; near 1 the
    gradients are so small that eps rules, and the optimizer is SGD with rate lr / eps (Wortsman et al. 2023, arXiv
    2309.14322). Per network (all elements count equally) and layer. "EpsilonShare/rms" is the RMS of the update in
    units of the
    learning rate, ``sqrt(mean(s^2)) / lr``: about 0.2 to 1 with Adam; jumps above 1 come before loss spikes (arXiv
    2304.13013). It includes weight decay. Known for Adam, AdamW, NAdam, RMSprop and Adagrad; no value elsewhere.
    """

    needs = ("update", "optimizer")
    layerwise = True
    description = "Share of eps in Adam's denominator: near 1 it no longer adapts."
    question = "does Adam still adapt?"
    formula = "mean of `eps / (sqrt(v) + eps)`; `/rms` is `sqrt(mean s^2) / lr`"
    cost = "next to nothing"

    def measure(self, statistics: Statistics) -> Value:
        states = {name: statistics.optimizer[name] for name in statistics.update if name in statistics.optimizer}
        if not states:
            raise NoValue("no parameter has a gradient")
        shares = find_shares(states)
        states = {name: states[name] for name in shares}
        sizes = {name: statistics.parameters[name].numel() for name in states}
        value = Value(sum(shares[n] * sizes[n] for n in shares) / sum(sizes.values()), shares)
        steps, rates = statistics.norms_of("update"), {name: state.number("lr") for name, state in states.items()}
        if all(rates.values()):
            squares = {name: (steps[name] / rates[name]) ** 2 for name in states}
            layers = {name: math.sqrt(squares[name] / sizes[name]) for name in states}
            value.parts["rms"] = Value(math.sqrt(sum(squares.values()) / sum(sizes.values())), layers)
        return value


def find_shares(states: Mapping[str, ParameterState]) -> dict[str, float]:
    """The states of parameters whose optimizer has known second moments; where none has, the reason of the first."""
    moments: dict[str, tuple[Moments, float]] = {}
    reasons = []
    for name, state in states.items():
        try:
            moments[name] = find_moments(state), state.number("eps")
        except NoValue as reason:
            reasons.append(reason)
    if not moments:
        raise reasons[0]
    here = {name: own for name, own in moments.items() if is_here(own[0].squares)}
    shares = dict(zip(here, mean_shares_here(list(here.values())), strict=True))
    others = {name: mean_share(*own) for name, own in moments.items() if name not in here}
    if others:
        shares |= zip(others, torch.stack([share.to(torch.float64) for share in others.values()]).tolist(), strict=True)
    return {name: shares[name] for name in moments}


def is_here(squares: Tensor) -> bool:
    """Can a kernel read it where it lies?"""
    return type(squares) is Tensor and can_reduce(squares, 0) and squares.is_contiguous() and squares.numel() > 0


def mean_shares_here(moments: list[tuple[Moments, float]]) -> list[float]:
    """In one walk, without memory for roots."""
    jobs = [(own.squares, own.factor, eps) for own, eps in moments]
    return [total / own.squares.numel() for total, (own, _) in zip(sum_shares(jobs), moments, strict=True)]


def mean_share(moments: Moments, eps: float) -> Tensor:
    """Where it lies: nobody waits for the device."""
    roots = whole(moments.squares).sqrt() * moments.factor
    return (eps / (roots + eps)).mean(dtype=torch.float64) if eps > 0 else roots.new_zeros((), dtype=torch.float64)

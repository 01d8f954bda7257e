from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from cockpit_core.foundation.sharded import whole
from cockpit_core.quantities.base import NoValue, Quantity, Statistics, Value
from cockpit_core.quantities.second_moments import find_roots

if TYPE_CHECKING:
    from cockpit_core.quantities.measured import ParameterState


class EpsilonShare(Quantity):
    """Does Adam still adapt, or does eps decide? Mean over elements of ``eps / (sqrt(v) + eps)``, ``v`` bias-corrected.

    The denominator is the one that step t divided by. Near 0 each element has a step size of its own; near 1 the
    gradients are so small that eps rules, and the optimizer is SGD with rate lr / eps (Wortsman et al. 2023, arXiv
    2309.14322). Per network (all elements alike) and layer. "EpsilonShare/rms" is the RMS of the update in units of the
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
    """Of the parameters whose optimizer has known second moments; where none has, the reason of the first."""
    shares, reasons = {}, []
    for name, state in states.items():
        try:
            shares[name] = share_of(state)
        except NoValue as reason:
            reasons.append(reason)
    if not shares:
        raise reasons[0]
    return shares


def share_of(state: ParameterState) -> float:
    roots = whole(find_roots(state))
    eps = state.number("eps")
    return float(mean_share(roots, eps)) if eps > 0 else 0.0


def mean_share(roots: Tensor, eps: float) -> Tensor:
    return (eps / (roots + eps)).double().mean()

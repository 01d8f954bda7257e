"""Which parameters were used in the forward pass and got no gradient, and which moved nowhere."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence


def measure_reach(called: Sequence[str], norms: Mapping[str, float], places: Mapping[str, int]) -> dict[str, float]:
    """How far the backward pass came. ``called``: trainable parameters in the order in which the forward pass used
    them; ``norms``: of the gradients that arrived.

    ``ungraded_prefix`` counts those at the beginning, next to the input, that got none (or exactly zero) though later
    ones did: the graph is cut behind them. Parameters of a side branch that the loss does not look at are not there.
    ``ungraded_inside`` counts others that were used and got none at all, if there are some, though the last ones did.
    """
    graded = [norms.get(name, 0.0) != 0 for name in called]
    first = graded.index(True) if any(graded) else 0
    if not first:
        inside = [place for place, name in enumerate(called) if name not in norms]
        if not inside or inside[-1] == len(called) - 1:
            return {"ungraded_prefix": 0.0} if called else {}
        where = float(places.get(called[inside[0]], -1))
        return {"ungraded_prefix": 0.0, "ungraded_inside": float(len(inside)), "ungraded_where": where}
    return {
        "ungraded_prefix": float(first),
        "ungraded_none": float(sum(name not in norms for name in called[:first])),
        "ungraded_where": float(places.get(called[first - 1], -1)),
    }


def measure_steps_to_go(loss: float, slope: float, length: float) -> dict[str, float]:
    """``L / (|slope| length)``: how many steps like this one, at this slope, would bring the loss to zero."""
    descent = abs(slope) * length
    if not descent > 0 or not math.isfinite(loss):
        return {}
    return {"steps_to_go": abs(loss) / descent}

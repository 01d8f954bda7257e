from __future__ import annotations

import math
from collections.abc import Mapping

from cockpit_core.quantities.base import NoValue, Quantity, Statistics, Value
from cockpit_core.quantities.norms import combine


class UpdateRatio(Quantity):
    """Is the step in proportion to the weights? ``||s_t|| / ||theta_t||``, per network and layer; often near 1e-3.

    "UpdateRatio/angle" is the angle between ``theta_t`` and ``theta_{t+1}`` in degrees, per network and layer: where a
    normalisation makes the length of weights meaningless, the angle is what matters, and in a healthy run it settles
    at the same value for all layers (Kosson et al. 2023, arXiv 2305.17212). Layers that begin at zero (biases) have
    no ratio
    until they have moved.
    """

    needs = ("parameters", "update")
    layerwise = True
    description = "Length of the step over the length of the weights; often near 0.001."
    question = "is the step in proportion to the weights?"
    formula = "`||s_t|| / ||theta_t||`; `/angle` between `theta_t` and `theta_{t+1}`, degrees"
    cost = "next to nothing"

    def measure(self, statistics: Statistics) -> Value:
        steps, lengths = statistics.norms_of("update"), statistics.norms_of("parameters")
        if not steps:
            raise NoValue("no parameter has a gradient")
        lengths = {name: lengths[name] for name in steps}
        layers = {name: steps[name] / lengths[name] for name in steps if lengths[name] != 0}
        if combine(lengths) == 0:
            raise NoValue("all parameters are zero")
        products = statistics.products_of("parameters", "update")
        return Value(combine(steps) / combine(lengths), layers, parts={"angle": angles(products, lengths, steps)})


def angles(products: Mapping[str, float], lengths: Mapping[str, float], steps: Mapping[str, float]) -> Value:
    """Between x and x + s. From the part of s along x and the part across it: an arc cosine would round small ones away."""
    each = {name: angle(products[name], lengths[name], steps[name]) for name in products if lengths[name] != 0}
    chosen = {name: lengths[name] for name in products}
    return Value(angle(sum(products.values()), combine(chosen), combine({n: steps[n] for n in products})), each)


def angle(product: float, length: float, step: float) -> float:
    along = product / length
    across = math.sqrt(max(step * step - along * along, 0.0)) if math.isfinite(step) else math.nan
    return math.degrees(math.atan2(across, length + along))

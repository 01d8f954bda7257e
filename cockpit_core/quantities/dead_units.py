from __future__ import annotations

from cockpit_core.quantities.activation_values import describe_part, find_activations, refuse_empty, share_by_layer
from cockpit_core.quantities.base import Quantity, Statistics, Value, check_positive


class DeadUnits(Quantity):
    """Which units do nothing? Share of units of ReLUs whose output is zero for every sample of the batch.

    A unit is a feature, or the channel of a convolution; it is named after the nearest trainable layer before it. A dead
    unit has no gradient and does not come back by itself; a few percent are usual, half of a layer is not.
    "DeadUnits/dormant" is the share of units of any activation whose mean ``|h|`` is at most ``threshold`` of the mean of
    their layer (Sokar et al. 2023, arXiv 2302.12902). Of large activations only a part is looked at, and the value
    says so: a unit that is alive for few samples may then count as dead, as it may where the batch is small.
    """

    needs = ("units",)
    layerwise = True
    description = "Share of ReLU units that are zero for every sample of the batch."
    question = "which units do nothing?"
    formula = "share of ReLU units that are zero for all samples; `/dormant`"
    cost = "below 5 % of an economy step"

    def __init__(self, *, threshold: float = 0.025, schedule=None):
        super().__init__(schedule=schedule)
        self.threshold = check_positive("threshold", threshold)

    def measure(self, statistics: Statistics) -> Value:
        activations = find_activations(statistics)
        refuse_empty(
            activations.units, activations, "no activation function was seen between the parameters and the loss"
        )
        dormant = Value(*share_by_layer((u.layer, self.count_dormant(u), len(u.sizes)) for u in activations.units))
        dormant.method = describe_part(activations.units)
        dying = [u for u in activations.units if u.dies]
        if not dying:
            return Value(reason="no activation of this network can die as a ReLU does", parts={"dormant": dormant})
        dead = share_by_layer((u.layer, float((~u.alive).sum()), len(u.alive)) for u in dying)
        return Value(*dead, method=describe_part(dying), parts={"dormant": dormant})

    def count_dormant(self, units) -> float:
        return float((units.sizes <= self.threshold * units.sizes.mean()).sum())

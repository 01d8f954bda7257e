from __future__ import annotations

from cockpit_core.quantities.activation_values import describe_part, find_activations, refuse_empty, share_by_layer
from cockpit_core.quantities.base import Quantity, Statistics, Value


class Saturation(Quantity):
    """Are activations stuck at their flat ends? Share of outputs of tanh, sigmoid and hard tanh that are.

    Within a hundredth of the range's half: ``|tanh| > 0.99``, a sigmoid below 0.005 or above 0.995, a hard tanh at its
    bounds. Hardly any gradient passes there. Per network and layer (the nearest trainable one before). Gates inside
    ``nn.LSTM`` are not visible. Of large activations only a part is looked at, and the value says so.
    """

    needs = ("units",)
    layerwise = True
    description = "Share of tanh and sigmoid outputs at their flat ends, where no gradient passes."
    question = "are activations at their flat ends?"
    formula = "share of tanh and sigmoid outputs that are"
    cost = "the same"

    def measure(self, statistics: Statistics) -> Value:
        activations = find_activations(statistics)
        ends = [u for u in activations.units if u.saturated == u.saturated]
        refuse_empty(ends, activations, "no tanh, sigmoid or hard tanh was seen between the parameters and the loss")
        share = share_by_layer((u.layer, u.saturated, u.elements * len(u.alive)) for u in ends)
        return Value(*share, method=describe_part(ends))

from __future__ import annotations

import math

from cockpit_core.quantities.activation_values import describe_part, find_activations, refuse_empty
from cockpit_core.quantities.base import Quantity, Statistics, Value


class ActivationScale(Quantity):
    """Do signals fade or explode on their way? RMS of the outputs of each module with parameters.

    ``sqrt(mean(h^2))`` under the name of the module's first parameter; the network's value is that of the model's output
    (the logits of a classifier). Healthy networks keep the same order of magnitude from layer to layer; a fall by a
    constant factor per layer is a bad initialisation, growth over time comes before overflow. "ActivationScale/largest" is
    the largest absolute output of the model. Of large outputs only an evenly spread part is looked at, and the value
    says so.
    """

    needs = ("scales",)
    layerwise = True
    description = "Root mean square of each layer's outputs, and of the network's."
    question = "do signals fade or explode?"
    formula = "RMS of the outputs of each layer, and of the model; `/largest`"
    cost = "the same"

    def measure(self, statistics: Statistics) -> Value:
        activations = find_activations(statistics)
        refuse_empty(activations.scales, activations, "no output of a layer was seen")
        layers = {name: math.sqrt(scale.squares / scale.elements) for name, scale in activations.scales.items()}
        output, method = activations.scales.get(""), describe_part(activations.scales.values())
        network = layers.pop("", None)
        if output is None:
            return Value(None, layers, method=method, reason="the model returns no tensor")
        return Value(
            network, layers, method=method, parts={"largest": Value(output.largest, method=describe_part([output]))}
        )

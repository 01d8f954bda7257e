from __future__ import annotations

import math

from cockpit_core.quantities.activation_values import describe_part, find_activations, refuse_empty, share_by_layer
from cockpit_core.quantities.base import Quantity, Statistics, Value


class AttentionEntropy(Quantity):
    """Does attention still look around? Mean entropy of its weights in nats, over heads, queries and samples.

    ``-sum_j p_j log p_j`` before dropout: ``log(keys)`` means that all keys are looked at equally, 0 that only one
    is. A collapse towards 0 early in training precedes divergence (Zhai et al. 2023, arXiv 2303.06296). Per network
    and layer (the nearest trainable one
    before, as a rule the projection of the queries). "AttentionEntropy/largest_logit" is the largest absolute product of
    a query and a key, scaled, where the fused kernels show it; beyond some tens the softmax is saturated. A softmax over
    the last of three or more dimensions is taken for attention. Of many queries only a part is looked at, and the
    value says so.
    """

    needs = ("attention",)
    layerwise = True
    unit = "nats"
    description = "Mean entropy of the attention weights: near 0 each query looks at a single key."
    question = "does attention still look around?"
    formula = "mean entropy of its weights, nats; `/largest_logit`"
    cost = "the same"

    def measure(self, statistics: Statistics) -> Value:
        activations = find_activations(statistics)
        refuse_empty(activations.attention, activations, "no attention was seen between the parameters and the loss")
        entropy = share_by_layer((a.layer, a.entropy, a.rows) for a in activations.attention)
        value = Value(*entropy, method=describe_part(activations.attention))
        known = [a for a in activations.attention if not math.isnan(a.largest)]
        if known:
            layers = {a.layer: max(b.largest for b in known if b.layer == a.layer) for a in known if a.layer}
            value.parts["largest_logit"] = Value(max(a.largest for a in known), layers, method=describe_part(known))
        return value

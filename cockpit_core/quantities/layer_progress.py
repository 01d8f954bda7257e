from __future__ import annotations

from cockpit_core.quantities.base import NoValue, Quantity, Statistics, Value


class LayerProgress(Quantity):
    """Which layer does the work? ``-s_t . g``, the decrease of the loss that the step promises to first order.

    Per layer, and their sum for the network, in units of the loss. A layer near 0 has hardly any part in it; a
    negative one
    goes uphill (momentum from earlier steps, weight decay). Compare it with what the loss really did: it holds to
    first order only, and on this batch, so it promises too much where the step is long.
    """

    needs = ("gradients", "update")
    layerwise = True
    unit = "loss"
    description = "Decrease of the loss that the step promises, by layer."
    question = "which layer does the work?"
    formula = "`-s_t . g`, in units of the loss"
    cost = "next to nothing"

    def measure(self, statistics: Statistics) -> Value:
        products = statistics.products_of("update", "gradients")
        if not products:
            raise NoValue("no parameter has a gradient")
        return Value(-sum(products.values()), {name: -value for name, value in products.items()})

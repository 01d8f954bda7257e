from __future__ import annotations

from torch import Tensor

from cockpit_core.quantities.base import NoValue, Quantity, Statistics, Value
from cockpit_core.quantities.products import cosines, measure_products


class UpdateCosine(Quantity):
    """Does the step go where the gradient points? ``cos(s_t, -g)``: 1 for plain SGD, less with momentum or Adam.

    Per network and layer. "UpdateCosine/last" is ``cos(s_t, s_{t-1})``: near 1 the steps add up (momentum, a straight
    valley), near -1 they undo each other (bouncing between walls). It needs the step right before, so it has a value only
    where that one was tracked too: ``schedule=1``, or a schedule of pairs such as ``lambda step: step % 50 < 2``.
    ``g`` is the gradient of the backward pass, before clipping. Weight decay turns the step away from ``-g`` as well.
    """

    needs = ("gradients", "update")
    layerwise = True
    description = "Cosine between the step and the negative gradient: 1 for plain SGD."
    question = "does the step go where the gradient points?"
    formula = "`cos(s_t, -g)`; `/last` is `cos(s_t, s_{t-1})`"
    cost = "next to nothing"

    def __init__(self, *, schedule=None):
        super().__init__(schedule=schedule)
        self._last: tuple[int, dict[str, Tensor], dict[str, float]] = (-2, {}, {})

    def measure(self, statistics: Statistics) -> Value:
        update, norms = statistics.update, statistics.norms_of("update")
        (step, last, lengths), self._last = self._last, (statistics.step, dict(update), norms)
        products = statistics.products_of("update", "gradients")
        if not products:
            raise NoValue("no parameter has a gradient")
        network, layers = cosines(products, norms, statistics.gradient_norms)
        reason = "" if network is not None else "the step or the gradient is zero"
        value = Value(None if network is None else -network, {n: -c for n, c in layers.items()}, reason=reason)
        if step == statistics.step - 1:
            again = cosines(measure_products(update, last), norms, lengths)
            if again[0] is not None:
                value.parts["last"] = Value(*again)
        return value

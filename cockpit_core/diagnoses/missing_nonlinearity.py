"""Two linear layers in a row are one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence, listed
from cockpit_core.diagnosis.limits import limit

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View


class MissingNonlinearity(Diagnosis):
    name = "missing_nonlinearity"
    title = "a non-linearity is missing"
    severity = "advice"
    needs = ("static_linear_pairs",)
    hold, after = 1, 0
    confidence = 0.7
    before_training = True
    explains = ("learning_rate_too_low", "not_learning")  # what is left is beyond a linear network
    rivals = {  # noqa: RUF012
        "labels_random": "an activation function between the layers. If nothing is learned then either, look at the labels.",
    }

    def test(self, view: View) -> Found | None:
        layers = view.first("linear_layers")  # of the graph: also where functions are forgotten in a forward method
        linear = view.static("static_linear") == 1 or layers >= 2
        pairs = view.static("static_linear_pairs")
        if not pairs > 0 and not linear:
            return None
        names = view.facts.names("linear pairs")
        text = (
            f"Two linear layers stand directly behind one another (before {listed(names)}): without a "
            "non-linearity between them they are one."
        )
        if linear:
            text = (
                "The network is linear: there is no activation function between its layers, so that together they can do "
                "no more than one."
            )
        remedy = "Put an activation function between them, or leave one out."
        # A bottleneck of two linear layers is meant. A network without any non-linearity is a linear one: that shows.
        rests = view.t >= 80 and view.level > 0.3 and not view.improves
        # Of real targets half as much is enough: nobody means it.
        left = view.settled and view.facts.may_be_noise and view.level > limit("wanting") and not view.does_well
        harmful = linear and view.t >= 60 and (view.struggles or rests or view.wanting or left)
        return Found(text, remedy, [evidence("linear layers in a row", layers if linear else pairs)], names,
                     severity="likely" if harmful else "advice", alone=not harmful)  # fmt: skip

"""Sigmoid or tanh units sit at the end of their range, where their slope is nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence, number

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View


class SaturatedUnits(Diagnosis):
    name = "saturated_units"
    title = "units are saturated"
    needs = ("saturated",)
    hold, after, least = 3, 10, 5
    confidence = 0.7
    explains = ("vanishing_gradients", "not_learning", "labels_random")

    def test(self, view: View) -> Found | None:
        share = view.typical("saturated")
        if not share > 0.9 or view.learns:
            return None
        where = view.name_activation("saturated_where")
        text = (
            f"{number(100 * share)} % of the values of module {where} are at the end of their range, where the slope is "
            "almost zero."
        )
        remedy = "Scale the inputs, lower the learning rate, or initialise smaller weights."
        return Found(text, remedy, [evidence("saturated", share, layer=where)], [where])

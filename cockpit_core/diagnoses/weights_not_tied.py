"""Two matrices start as copies of one another and are trained apart: a tie that was meant and not made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence, listed

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View


class WeightsNotTied(Diagnosis):
    name = "weights_not_tied"
    title = "weights were copied, not tied"
    severity = "advice"
    needs = ("static_copies",)
    hold, after = 1, 0
    confidence = 0.8
    before_training = True

    def test(self, view: View) -> Found | None:
        if not view.static("static_copies") > 0 or view.history.resumed:
            return None
        names = view.facts.names("copied weights")
        text = (
            f"{listed(names)} start with the very same numbers and are different parameters: they were copied, not tied, "
            "and training will part them."
        )
        remedy = "To tie them, assign the parameter itself: head.weight = embedding.weight (no clone, no .data)."
        return Found(text, remedy, [evidence("copies", view.static("static_copies"))], names)

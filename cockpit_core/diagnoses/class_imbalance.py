"""One label is so common that always giving it is nearly right, and that is what the network does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence, number
from cockpit_core.diagnosis.limits import limit

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View


class ClassImbalance(Diagnosis):
    name = "class_imbalance"
    title = "one class dominates"
    severity = "advice"
    needs = ("label_top_share",)
    hold, after, least = 4, 40, 10
    confidence = 0.7

    def test(self, view: View) -> Found | None:
        share, guesses = view.typical("label_top_share"), view.typical("guess_top_share")
        if not share > limit("label_top_share") or not guesses > 0.99 or not view.batch >= 16:
            return None
        text = f"{number(100 * share)} % of the labels are the same, and the network always gives that one."
        remedy = (
            "Weight the classes in the loss (weight=1 / share), or draw batches that are balanced; look at "
            "recall, not accuracy."
        )
        return Found(text, remedy, [evidence("label_top_share", share)])

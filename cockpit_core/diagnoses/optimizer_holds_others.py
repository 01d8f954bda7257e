"""The optimizer moves tensors that the model does not have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence, listed, number

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View


class OptimizerHoldsOthers(Diagnosis):
    name = "optimizer_holds_others"
    title = "the optimizer holds tensors of something else"
    severity = "advice"
    needs = ("static_foreign",)
    hold, after = 1, 0
    confidence = 0.9
    before_training = True
    explains = (
        "nothing_moves",
        "parameters_not_optimized",
        "gradients_not_zeroed",
        "not_learning",
        "labels_random",
        "learning_rate_too_low",
        "learning_rate_too_high",
        "batch_repeated",
    )

    def test(self, view: View) -> Found | None:
        foreign, missing = view.static("static_foreign"), view.static("static_unoptimized")
        if not (foreign > 0 and missing > 0):
            return None
        names = view.facts.names("not optimized")
        text = (
            f"The optimizer holds {number(foreign)} tensors that the model does not have, and not "
            f"{listed(names)}: layers seem to have been replaced after it was made."
        )
        remedy = "Make the optimizer after the model is complete, and after it was moved or copied."
        numbers = [evidence("foreign tensors", foreign)]
        if view.static("static_held") == 0:
            text = (
                f"The optimizer holds {number(foreign)} tensors, none of which the model has: nothing of the model moves. It was "
                "made for another model, or the model was copied or replaced after it was made."
            )
            return Found(text, remedy, numbers, names, severity="broken", at_once=True)
        return Found(text, remedy, numbers, names, alone=True)

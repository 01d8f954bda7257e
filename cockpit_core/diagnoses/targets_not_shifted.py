"""A language model is asked for the token that it sees."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View


class TargetsNotShifted(Diagnosis):
    name = "targets_not_shifted"
    title = "targets are not shifted"
    needs = ("target_is_input",)
    hold, after, least = 1, 0, 1
    confidence = 0.9
    explains = ("overfitting",)

    def test(self, view: View) -> Found | None:
        same = view.every("target_is_input", 2)
        if not same or min(same) < 0.99:
            return None
        text = "The targets are the inputs: the model is asked for the token that it sees, not for the next one."
        remedy = "Shift by one: model(tokens[:, :-1]) against tokens[:, 1:]."
        return Found(
            text,
            remedy,
            [evidence("target_is_input", same[-1], "share of targets that equal the input at their place")],
        )

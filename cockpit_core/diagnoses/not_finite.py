"""The loss, or what goes into it, is no number any more."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence, number

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View


class NotFinite(Diagnosis):
    name = "not_finite"
    title = "the loss is not finite"
    severity = "broken"
    needs = ("Loss",)
    hold, after, sticky = 1, 0, True
    confidence = 0.99

    def test(self, view: View) -> Found | None:
        bad_inputs, bad_outputs = view.now("input_not_finite"), view.now("output_not_finite")
        if not view.broken and not bad_inputs > 0:
            return None
        step = view.history.first_not_finite if view.broken else view.t
        if bad_inputs > 0:
            text = f"The inputs hold {number(bad_inputs)} values that are NaN or infinite."
            remedy = "Look for missing values and divisions by zero in the data (a standard deviation of 0)."
        else:
            text = f"The loss is not finite since step {step}" + (
                ", and so is what the network gives." if bad_outputs > 0 else "."
            )
            if view.now("plain_log") > 0:
                text = text[:-1] + "; the logarithm of a softmax or sigmoid is taken, which may have become zero."
            remedy = (
                "Take log_softmax or logsigmoid of the scores (or give them to CrossEntropyLoss or BCEWithLogitsLoss)."
                if view.now("plain_log") > 0
                else "Lower the learning rate, or clip gradients; look for log(0), division by zero and half "
                "precision in the loss."
            )
        return Found(
            text, remedy, [evidence("Loss", view.losses[-1] if view.losses else math.nan, step=step)], since=step
        )

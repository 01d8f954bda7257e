"""Part of the labels contradicts the rest: the loss stays up while the network is sure of most samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence, number

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View


class LabelNoise(Diagnosis):
    name = "label_noise"
    title = "part of the labels is wrong"
    severity = "advice"
    needs = ("loss_std",)
    hold, after, least = 4, 100, 20
    confidence = 0.4

    def test(self, view: View) -> Found | None:
        accuracy = view.typical("accuracy")
        worst = view.typical("loss_max") / (view.typical("loss_median") + 1e-9)
        if not view.learns or not 0.4 < accuracy < 0.85 or not view.noise > 4 or not worst > 8 or view.drop > 0.8:
            return None
        text = (
            f"Some labels may be wrong: {number(100 * accuracy)} % of the samples are right with ease, and the "
            f"worst ones cost {number(worst)} times the median."
        )
        remedy = (
            "Look at the samples with the largest losses; if their labels are right, the task is hard, not the "
            "data wrong."
        )
        return Found(text, remedy, [evidence("accuracy", accuracy), evidence("noise", view.noise)])

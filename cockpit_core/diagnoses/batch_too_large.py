"""So many samples that a batch of a fraction would give the same step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence, number

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View


class BatchTooLarge(Diagnosis):
    name = "batch_too_large"
    title = "the batch is larger than needed"
    severity = "advice"
    needs = ("NormTest",)
    hold, after, least = 6, 50, 20
    confidence = 0.6

    def test(self, view: View) -> Found | None:
        if not view.noise < 0.01 or view.batch < 256 or not view.n >= 20:
            return None
        enough = max(16, int(view.batch * view.noise * 10))
        text = (
            f"The batch of {view.batch} is larger than needed: its gradient has almost no noise "
            f"({number(100 * view.noise)} % of its length squared)."
        )
        remedy = f"A batch of about {enough} gives nearly the same steps, so that you can take more of them."
        return Found(text, remedy, [evidence("noise", view.noise)])

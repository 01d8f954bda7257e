"""BatchNorm's running statistics are those of the last batch alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View


class BatchnormMomentum(Diagnosis):
    name = "batchnorm_momentum"
    title = "BatchNorm remembers only the last batch"
    severity = "advice"
    needs = ("static_batchnorm_momentum",)
    hold, after = 1, 0
    confidence = 0.9
    explains = ("overfitting",)
    before_training = True

    def test(self, view: View) -> Found | None:
        momentum = view.static("static_batchnorm_momentum")
        if not momentum >= 0.9:
            return None
        text = (
            f"BatchNorm has a momentum of {momentum:g}: its running statistics, which evaluation uses, are those "
            "of the last batch."
        )
        remedy = "Use 0.1 (torch counts the other way round: 0.1 keeps 90 % of what was)."
        severity = "likely" if view.wanting else "advice"
        return Found(text, remedy, [evidence("BatchNorm momentum", momentum)], severity=severity)

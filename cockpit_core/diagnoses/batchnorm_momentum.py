"""BatchNorm's running statistics are those of the last batch alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence, number
from cockpit_core.diagnosis.history import PROBE
from cockpit_core.diagnosis.reading import ratio

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View

SLOW = 0.01  # a momentum that takes a hundred steps


class BatchnormMomentum(Diagnosis):
    name = "batchnorm_momentum"
    title = "BatchNorm remembers only the last batch"
    severity = "advice"
    needs = ("static_batchnorm_momentum",)
    hold, after = 1, 0
    confidence = 0.9
    explains = ("overfitting",)
    before_training = True
    probe = "mode"

    @staticmethod
    def _lags(view: View) -> float:
        """Share of the running statistics that is still what they were made with, where nothing was trained into them."""
        momentum = view.static("static_batchnorm_momentum")
        fresh = view.static("static_batchnorm_untrained") > 0 and not view.history.resumed
        return (1 - momentum) ** view.t if 0 < momentum < SLOW and fresh else 0.0

    def suspects(self, view: View) -> bool:
        return view.t >= 50 and self._lags(view) > 0.5

    def _is_slow(self, view: View) -> Found | None:
        share, momentum = self._lags(view), view.static("static_batchnorm_momentum")
        if not share > 0.5 or view.t < 50:
            return None
        text = (
            f"BatchNorm has a momentum of {momentum:g}: after {view.t} steps {number(100 * share)} % of its running statistics, "
            "which evaluation uses, are still what they were made with (mean 0, variance 1)."
        )
        worse = ratio(view.last(PROBE + "eval"), view.last(PROBE + "loss"))
        if worse > 1.3:
            text = f"{text[:-1]}, and the loss of a batch is {number(worse)} times as high in evaluation mode."
        remedy = "Use 0.1: each step then brings a tenth of its batch's statistics."
        harmful = worse > 1.3 or (view.finished and worse != worse)
        numbers = [evidence("BatchNorm momentum", momentum), evidence("evaluation over training loss", worse)]
        return Found(text, remedy, numbers, severity="likely" if harmful else "advice")

    def test(self, view: View) -> Found | None:
        if (slow := self._is_slow(view)) is not None:
            return slow
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

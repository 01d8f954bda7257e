"""The scheduler steps before the optimizer: the first learning rate of the schedule is never used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View


class ScheduleBeforeStep(Diagnosis):
    name = "schedule_before_step"
    title = "the scheduler steps before the optimizer"
    severity = "advice"
    needs = ("static_rate",)
    hold, after, least, sticky = 1, 0, 1, True
    confidence = 0.8

    def test(self, view: View) -> Found | None:
        rate, first = view.static("static_rate"), view.history.first.get("LearningRate", float("nan"))
        if view.n > 1 or view.t > 0 or view.history.resumed or not view.static("static_scheduled") > 0:
            return None
        if not rate > 0 or not abs(first - rate) > 1e-6 * rate:
            return None
        text = (
            f"The scheduler steps before the optimizer: the schedule began at {rate:.4g}, and the first step was "
            f"taken with {first:.4g}."
        )
        remedy = "Call optimizer.step() first, then scheduler.step()."
        return Found(text, remedy, [evidence("LearningRate", first)])

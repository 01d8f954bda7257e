"""The samples agree where to go, nothing stands in the way, and the steps are far too short to get there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence, number
from cockpit_core.diagnosis.limits import limit

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View


class LearningRateTooLow(Diagnosis):
    name = "learning_rate_too_low"
    title = "the learning rate is too low"
    needs = ("Alpha", "HessMaxEV")
    hold, after, least = 3, 40, 8
    confidence = 0.9
    explains = ("not_learning", "labels_random", "label_noise")

    def test(self, view: View) -> Found | None:
        if (
            view.rate_fall < 0.5
            or view.clipped < 0.5
            or view.silent
            or view.learns
            or view.travelled > 0.1
            or view.history.resumed
        ):
            return None
        long_way = view.steps_to_go_min > limit("steps_to_go") and view.drop < 0.2
        gentle = view.edge < limit("edge_low") and view.drop < 0.5 and view.noise < 10
        if not long_way and not gentle:
            return None
        factor = min(100.0, 0.3 / view.edge) if gentle else min(100.0, view.steps_to_go_min / 100)
        why = (
            f"at this slope the loss needs {number(view.steps_to_go_min)} more steps"
            if long_way
            else (f"steps {number(1 / view.edge)} times as long would still be stable")
        )
        text = (
            f"The learning rate {number(view.rate)} is too low: after {view.t} steps the loss fell by "
            f"{number(100 * max(view.drop, 0))} %, and {why}."
        )
        remedy = f"Multiply the learning rate by about {number(factor)}, to {number(view.rate * factor)}."
        found = [evidence("steps_to_go", view.steps_to_go_min), evidence("edge", view.edge, limit="edge_low")]
        return Found(text, remedy, [item for item in found if item.value == item.value])

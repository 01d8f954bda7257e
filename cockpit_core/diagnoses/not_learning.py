"""Nothing is learned, and no rule knows why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence, number
from cockpit_core.diagnosis.facts import LIKELIHOODS

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View

PATIENT = 250  # steps; plateaus of a hundred or two are healthy (warm-up, tasks that need several layers at once)
PATIENT_WITH_VALUES = 500  # real targets may be mostly noise, so that there is little to see of what is learned


class NotLearning(Diagnosis):
    name = "not_learning"
    title = "the network does not learn"
    needs = ("Loss",)
    hold, after, least = 4, 60, 12
    confidence = 0.6
    at_end = True
    probe = "mean"

    def suspects(self, view: View) -> bool:
        """Of a loss that nobody knows nothing else tells what a guess would cost."""
        unknown = view.chance != view.chance and view.facts.loss not in LIKELIHOODS
        return view.t >= 8 and not view.broken and (unknown or (view.t >= 40 and view.struggles))

    def test(self, view: View) -> Found | None:
        if view.history.resumed or not view.stuck or view.broken:
            return None
        known = view.level == view.level
        sure = view.finished or view.t >= (PATIENT_WITH_VALUES if view.facts.may_be_noise else PATIENT)
        text = f"The network does not learn: after {view.t} steps the loss is {number(view.loss)}" + (
            f", {number(100 * view.level)} % of that of a constant guess."
            if known
            else f"; it began at {number(view.loss0)}."
        )
        remedy = (
            "Train on 20 samples until they are known by heart: if that fails, the program is wrong; if it "
            "works, change the learning rate by 10 in both directions."
        )
        return Found(
            text,
            remedy,
            [evidence("level", view.level)] if known else [evidence("Loss", view.loss)],
            severity="likely" if known and sure else "advice",
        )

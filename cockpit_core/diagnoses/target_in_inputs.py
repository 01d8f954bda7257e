"""One of the inputs is the target itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence, number
from cockpit_core.diagnosis.facts import BINARY_LOSSES
from cockpit_core.diagnosis.limits import limit

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View


class TargetInInputs(Diagnosis):
    name = "target_in_inputs"
    title = "the target is among the inputs"
    needs = ("input_target",)
    hold, after, least = 1, 0, 3
    confidence = 0.5
    explains = ("overfitting",)

    @staticmethod
    def _tells_answers(view: View, least: float) -> bool:
        """Of yes-or-no answers: one value for yes and one for no, but for a little noise. The correlation is then
        1 / sqrt(1 + 1 / r^2), where r is half the distance of the two over the spread of each."""
        return view.facts.loss in BINARY_LOSSES and view.batch >= 16 and least >= limit("input_answers")

    def test(self, view: View) -> Found | None:
        likeness, places = view.every("input_target", 5), view.every("input_target_where", 5)
        if len(likeness) < (2 if view.sparse else 3) or len(set(places)) > 1 or view.batch < 8:
            return None
        least = min(likeness)
        same = least >= limit("input_target") or (len(likeness) == 5 and self._tells_answers(view, least))
        # A feature that tells nearly all may be a legitimate one; where it is all the same at every step, it is said.
        apart = view.not_followed > 2 and view.valid_left > 0.3  # validation, which has it not, falls behind
        nearly = len(likeness) == 5 and least > 0.9 and view.batch >= 16
        shares = view.every("targets_found", 5)
        if shares:  # several targets: one that stays as it was is among them by right, all of them are not
            same = min(shares) > 0
            apart = apart and same
            nearly = False
        if not same and not (nearly and (apart or (view.facts.may_be_noise and view.has_seen(12)))):
            return None
        text = (
            f"Feature {number(places[-1])} of the inputs gives the target away: over {len(likeness)} batches their "
            f"correlation is {'1' if least > 0.9999 else f'at least {least:.3g}'}."
        )
        remedy = (
            "Look where that column comes from. Either it was made of the target and will be missing in use, or the "
            "task is as simple as that: a network without the column decides."
        )
        return Found(
            text,
            remedy,
            [evidence("input_target", least)],
            severity="likely" if apart or (same and min(shares, default=1.0) == 1) else "advice",
            since=view.history.began,
        )

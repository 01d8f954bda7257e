"""The first class never occurs, and the last one does: labels that count from one. Or labels mean something else in
validation than in training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence, number
from cockpit_core.diagnosis.facts import BINARY_LOSSES

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View


class LabelsOffByOne(Diagnosis):
    name = "labels_off_by_one"
    title = "labels seem to count from one"
    severity = "advice"
    needs = ("label_min",)
    hold, after, least = 1, 0, 2
    confidence = 0.6
    explains = ("overfitting", "class_imbalance", "loss_sign", "learning_rate_too_high", "not_finite")
    at_validation = True

    @staticmethod
    def _differ(view: View) -> Found | None:
        """Even a network that has learned nothing is right as often as a guess."""
        if not view.other_labels:
            return None
        text = (
            f"Labels mean something else in validation than in training: {number(100 * view.right)} % of the answers are right in "
            f"training, and {number(100 * view.valid_accuracy)} % in validation, where guessing would give "
            f"{number(100 * view.top_share)} %."
        )
        remedy = "Compare how both sets number their classes: one may count from one, be sorted differently, or be shifted by one."
        numbers = [evidence("valid_accuracy", view.valid_accuracy), evidence("accuracy", view.right)]
        return Found(text, remedy, numbers, severity="likely", since=view.history.began)

    @staticmethod
    def _are_one_and_two(view: View) -> Found | None:
        """Yes-or-no targets, of which one is 1 and the other 2, in every batch."""
        lows, highs = view.every("target_min", 6), view.every("target_max", 6)
        if view.facts.loss not in BINARY_LOSSES or len(lows) < 2 or min(lows) != 1 or max(highs) != 2:
            return None
        text = f"Yes-or-no targets go from 1 to 2, and {view.facts.loss} takes 0 for no and 1 for yes: they seem to count from one."
        numbers = [evidence("target_min", min(lows)), evidence("target_max", max(highs))]
        return Found(text, "Subtract 1 from the targets.", numbers, severity="broken", since=view.history.began)

    def test(self, view: View) -> Found | None:
        if (differ := self._differ(view) or self._are_one_and_two(view)) is not None:
            return differ
        low, high = view.history.classes_seen
        classes = view.last("signal/classes")
        enough = view.n * view.batch > 20 * classes
        if low != 1 or high != classes - 1 or not enough or not classes > 2:
            return None
        text = (
            f"No sample has label 0, and the labels reach {number(high)} of {number(classes)} outputs: they seem "
            "to count from one."
        )
        remedy = "Subtract 1 from the labels, and give the network one output less."
        # Among tokens or pixels, number 0 is often padding or background and left out on purpose.
        single = view.typical("label_count") == view.batch
        return Found(text, remedy, [evidence("label_min", low)], severity="likely" if single else "advice")

"""The loss takes a softmax of what is a softmax already: gradients are squeezed, and the loss has a floor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence
from cockpit_core.diagnosis.facts import CLASS_LOSSES
from cockpit_core.diagnosis.limits import limit

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View


SEEN = 10
RIGHT = ((120, 0.7), (60, 0.5), (40, 0.4))  # after so many steps so many answers are right, in most healthy runs


def is_squashed(view: View) -> bool:
    """Between 0 and 1 at every one of many steps, and about a half at the first: scores begin about zero, and small ones
    of one sign lie between 0 and 1 too. Or they have reached both ends, and never gone beyond."""
    lows, highs = view.every("output_min", SEEN), view.every("output_max", SEEN)
    begins = view.first("output_min") > 0.2 and view.first("output_max") < 0.8
    fills = view.first("output_min") >= 0 and min(lows, default=1.0) < 0.02 and max(highs, default=0.0) > 0.98
    enough = len(lows) >= (SEEN if not fills else SEEN // 2)
    return (begins or fills) and enough and min(lows) >= 0 and max(highs) <= 1


class DoubleSoftmax(Diagnosis):
    name = "double_softmax"
    title = "softmax is taken twice"
    severity = "broken"
    needs = ("row_sum_error", "output_min")
    hold, after, least = 1, 0, 1
    confidence = 0.97
    explains = (
        "not_learning",
        "label_noise",
        "labels_random",
        "vanishing_gradients",
        "learning_rate_too_low",
        "init_too_small",
    )

    def test(self, view: View) -> Found | None:
        errors, lows, highs = view.every("row_sum_error", 2), view.every("output_min", 2), view.every("output_max", 2)
        if not lows:
            return None
        in_graph = view.now("squashed") > 0  # whatever was picked from it before the loss
        binary = view.facts.loss == "BCEWithLogitsLoss" and (in_graph or (view.batch >= 8 and is_squashed(view)))
        again = view.facts.loss == "BCELoss" and in_graph
        adds_up = len(errors) > 0 and max(errors) < limit("row_sum_error") and min(lows) >= 0
        twice = view.facts.loss in CLASS_LOSSES and (in_graph or (adds_up and view.facts.loss == "CrossEntropyLoss"))
        logless = view.facts.loss == "NLLLoss" and adds_up
        if logless:
            text, remedy = (
                "NLLLoss gets probabilities: it expects their logarithms.",
                "Use log_softmax, or give the scores to CrossEntropyLoss.",
            )
        elif again:
            text, remedy = (
                "What BCELoss gets is the sigmoid of a sigmoid: it is never below 0.5 nor above 0.73.",
                "Take the sigmoid once: in the network, or in BCEWithLogitsLoss instead of BCELoss.",
            )
        elif binary:
            text, remedy = (
                "BCEWithLogitsLoss gets numbers between 0 and 1 only: the sigmoid is taken twice.",
                "Give it the scores before the sigmoid, or use BCELoss.",
            )
        elif twice:
            text, remedy = (
                "Softmax is taken twice: what CrossEntropyLoss gets adds up to 1 for every sample already.",
                "Remove the softmax at the end of the network; CrossEntropyLoss takes it itself.",
            )
        else:
            return None
        numbers = (
            [evidence("squashed", 1.0, "a softmax or sigmoid of one, in the graph of the loss")]
            if in_graph and not adds_up
            else [evidence("row_sum_error", max(errors))]
            if errors
            else [evidence("output_min", min(lows)), evidence("output_max", max(highs))]
        )
        return Found(text, remedy, numbers, severity="advice" if twice and not self.harms(view) else "broken")

    @staticmethod
    def harms(view: View) -> bool:
        """Softmax of a softmax has the same order: where answers become right as they should, it does no harm. Where nobody
        knows how many are right, it is taken to."""
        if view.right != view.right:
            return True
        slow = any(view.t >= steps and view.right < share for steps, share in RIGHT)
        return (slow or (view.wanting and not view.of_texts)) and not view.valid_accuracy > 0.9

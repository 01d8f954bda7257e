"""The loss is being maximised: it is negative and cannot be, or steps point up the gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence, number
from cockpit_core.diagnosis.facts import BINARY_LOSSES, NEVER_NEGATIVE
from cockpit_core.diagnosis.limits import limit

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View

BEYOND = 1e4
"""So many times below zero as it began above or below: no likelihood has as much to gain."""
FAR_AWAY = 100
"""Times the targets, and the first outputs."""


class LossSign(Diagnosis):
    name = "loss_sign"
    title = "the loss has the wrong sign"
    severity = "broken"
    needs = ("Loss",)
    hold, after, least = 1, 0, 1
    confidence = 0.97
    explains = (
        "learning_rate_too_high",
        "not_learning",
        "not_finite",
        "labels_random",
        "dead_units",
        "targets_not_scaled",
        "init_too_large",
        "vanishing_gradients",
        "momentum_too_high",
        "weight_decay_too_high",
        "data_not_shuffled",
    )

    def test(self, view: View) -> Found | None:
        if view.facts.loss in NEVER_NEGATIVE and (climbs := self._climbs(view)):
            return climbs
        if (unfit := self._unfit(view)) is not None:
            return unfit
        if (left := self._leaves_targets(view)) is not None:
            return left
        last = [seen.get("Loss") for seen in view.late[-2:]]
        if view.loss < -BEYOND * max(1.0, abs(view.very_first)) and not view.history.resumed:
            return self._tell_runaway(view)
        always = all(loss < 0 for loss in last) and (view.very_first < 0 or view.history.resumed)  # no bonus that grew
        if not always or not view.facts.single:
            return None
        if view.facts.loss not in NEVER_NEGATIVE or not (view.facts.by_module or view.typical("loss_factor") < 0):
            return self._runs_away(view)
        if view.facts.loss.startswith("BCE") and not view.typical("target_max") <= 1:
            return None
        text = (
            f"The loss has the wrong sign: {view.facts.loss} is never negative, and what is differentiated is "
            f"{number(last[-1])}. It is being maximised."
        )
        remedy = "Remove the minus in front of the loss."
        return Found(text, remedy, [evidence("Loss", last[-1])])

    @staticmethod
    def _climbs(view: View) -> Found | None:
        """Every step points up the gradient, and the loss rises. A momentum that swings back does so now and then."""
        cosines = view.values("UpdateCosine", 8)
        if len(cosines) < 4 or max(cosines) > -0.02 or not view.loss > 1.2 * view.very_first or not view.facts.single:
            return None
        asked = any(group.get("maximize") == "True" for group in view.facts.groups)
        text = (
            f"The loss is being maximised: every step points up the gradient, and the loss went from {number(view.very_first)} "
            f"to {number(view.loss)}."
        )
        remedy = (
            "Make the optimizer without maximize=True."
            if asked
            else "Look for a minus too many in the loss or the step."
        )
        numbers = [evidence("UpdateCosine", cosines[-1], "cosine of the step and the way down")]
        return Found(text, remedy, numbers, since=view.history.began)

    @staticmethod
    def _unfit(view: View) -> Found | None:
        """A loss that is below zero because it gets what it is not made for: then it has no least value."""
        losses = [loss for loss in view.losses[-2:] if loss == loss]
        if len(losses) < 2 or max(losses) >= 0 or view.typical("loss_factor") < 0:
            return None
        high, low = view.typical("target_max"), view.typical("target_min")
        if view.facts.loss in BINARY_LOSSES and (high > 1.001 or low < -0.001):
            text = (
                f"The loss is {number(losses[-1])}, and {view.facts.loss} is never negative for targets between 0 and 1: these go "
                f"from {number(low)} to {number(high)}."
            )
            remedy = "Give the output first and the target second; targets must be probabilities."
            return Found(text, remedy, [evidence("target_max", high), evidence("target_min", low)])
        adds_up = view.typical("row_sum_error") < limit("row_sum_error")  # probabilities: double_softmax
        if view.facts.loss == "NLLLoss" and not adds_up and (high := view.typical("output_max")) > 0.001:
            text = (
                f"The loss is {number(losses[-1])}: NLLLoss expects logarithms of probabilities, which are never above 0, and gets "
                f"numbers up to {number(high)}."
            )
            return Found(
                text, "Use log_softmax, or give the scores to CrossEntropyLoss.", [evidence("output_max", high)]
            )
        return None

    @staticmethod
    def _leaves_targets(view: View) -> Found | None:
        """The loss falls, and outputs grow far beyond the targets that they are compared with (a logarithm hides how far)."""
        size, target = view.last("signal/output_rms"), view.typical("target_std") + view.typical("target_scale")
        away = size > FAR_AWAY * max(target, view.first("output_rms")) and view.real_targets and view.has_seen(6)
        if not away or not view.loss < view.very_first or not target > 0 or view.history.resumed:
            return None
        text = (
            f"The loss is being maximised, as it seems: it falls, from {number(view.very_first)} to {number(view.loss)}, while "
            f"outputs leave the targets: their root mean square is {number(size)}, {number(size / target)} times that of the "
            "targets."
        )
        remedy = "Look for a minus too many (or too few): what is minimised gets better the farther the outputs are."
        return Found(text, remedy, [evidence("outputs over targets", size / target)], severity="likely")

    @staticmethod
    def _runs_away(view: View) -> Found | None:
        """A loss that we do not know: below zero for every sample from the start, and falling without end."""
        top = view.first("loss_max")
        far = 20 * min(view.very_first, -1.0) if top != top else 3 * view.very_first
        if not view.loss < far or top > 0 or view.history.resumed:
            return None
        return LossSign._tell_runaway(view)

    @staticmethod
    def _tell_runaway(view: View) -> Found:
        text = (
            f"The loss runs away below zero: it began at {number(view.very_first)} and is {number(view.loss)}. Either its "
            "sign is wrong, or it has no lower bound."
        )
        remedy = "Look for a minus too many (or too few) in the loss; a loss that can be minimised has a least value."
        return Found(text, remedy, [evidence("Loss", view.loss)], severity="likely")

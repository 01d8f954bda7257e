"""A loss that cannot be negative is: it is being maximised."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence, number

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View


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
        from cockpit_core.diagnosis.facts import NEVER_NEGATIVE

        last = [seen.get("Loss") for seen in view.late[-2:]]
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
    def _runs_away(view: View) -> Found | None:
        """A loss that we do not know: below zero for every sample from the start, and falling without end."""
        top = view.first("loss_max")
        if not view.loss < (50 if top != top else 3) * view.very_first or top > 0 or view.history.resumed:
            return None
        text = (
            f"The loss runs away below zero: it began at {number(view.very_first)} and is {number(view.loss)}. Either its "
            "sign is wrong, or it has no lower bound."
        )
        remedy = "Look for a minus too many (or too few) in the loss; a loss that can be minimised has a least value."
        return Found(text, remedy, [evidence("Loss", view.loss)], severity="likely")

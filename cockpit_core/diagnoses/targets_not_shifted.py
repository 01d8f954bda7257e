"""A language model is asked for the token that it sees."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence
from cockpit_core.diagnosis.history import PROBE
from cockpit_core.diagnosis.limits import limit

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View


WAIT = 40  # steps, for a probe that may never come


class TargetsNotShifted(Diagnosis):
    name = "targets_not_shifted"
    title = "targets are not shifted"
    needs = ("target_is_input",)
    hold, after, least = 1, 0, 1
    confidence = 0.9
    explains = ("overfitting",)
    probe = "ahead"

    def suspects(self, view: View) -> bool:
        return view.typical("target_is_input") >= 0.99 and "ahead" not in view.history.probes

    @staticmethod
    def _is_shifted_twice(view: View) -> Found | None:
        later = view.every("target_is_later", 4)
        if len(later) < 2 or min(later) < 0.99 or not view.typical("target_is_next") < 0.9:
            return None
        text = "The targets are shifted twice: the model is asked for the token after the next one, and never for the next."
        remedy = (
            "Shift once. Models that give their loss themselves shift the labels: hand them the tokens as they are."
        )
        numbers = [evidence("target_is_later", later[-1], "share of targets that are the token after the next one")]
        return Found(text, remedy, numbers, severity="likely", since=view.history.began)

    def test(self, view: View) -> Found | None:
        if (twice := self._is_shifted_twice(view)) is not None:
            return twice
        same, ahead = view.every("target_is_input", 2), view.last(PROBE + "looks_ahead")
        if (
            not same or min(same) < 0.99 or ahead > limit("looks_ahead")
        ):  # a network that sees all places restores a text
            return None
        text = "The targets are the inputs: the model is asked for the token that it sees, not for the next one."
        remedy = "Shift by one: model(tokens[:, :-1]) against tokens[:, 1:]."
        sure = "ahead" in view.history.probes or view.t >= WAIT
        return Found(
            text,
            remedy,
            [evidence("target_is_input", same[-1], "share of targets that equal the input at their place")],
            severity="likely" if sure else "advice",
        )

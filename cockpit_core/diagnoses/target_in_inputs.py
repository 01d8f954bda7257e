"""One of the inputs is the target itself, or a network that is asked for the next token sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence, number
from cockpit_core.diagnosis.facts import BINARY_LOSSES
from cockpit_core.diagnosis.history import PROBE
from cockpit_core.diagnosis.limits import limit

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View

REMEDY = (
    "Look where that column comes from. Either it was made of the target and will be missing in use, or the "
    "task is as simple as that: a network without the column decides."
)
LOOKS, NEXT = 2, 0.9  # trials; share of targets that are the next token


class TargetInInputs(Diagnosis):
    name = "target_in_inputs"
    title = "the target is among the inputs"
    needs = ("input_target", "label_given", "probe/ahead")
    hold, after, least = 1, 0, 3
    confidence = 0.5
    explains = ("overfitting", "class_imbalance")
    probe = "ahead"

    def suspects(self, view: View) -> bool:
        """The next token is asked for: does the network see it?"""
        looked = view.values(PROBE + "looks_ahead", LOOKS)
        return view.t >= 8 and view.typical("target_is_next") > NEXT and len(looked) < LOOKS and not view.broken

    @staticmethod
    def _looks_ahead(view: View) -> Found | None:
        moved = view.last(PROBE + "looks_ahead")
        # Normalising over places makes all of them depend on one another a little.
        if not moved > limit("looks_ahead") or not view.typical("target_is_next") > NEXT:
            return None
        if view.static("static_batchnorms") > 0:
            return None
        text = (
            f"The network sees the tokens that it is asked for: what it says about earlier places changes by "
            f"{number(100 * moved)} % when later tokens are exchanged, and the targets are the next tokens."
        )
        remedy = (
            "Mask later places in attention (is_causal=True), in training too; pad convolutions on the left only, and use no "
            "layer that reads backwards."
        )
        return Found(text, remedy, [evidence("looks_ahead", moved)], severity="broken", since=view.history.began)

    @staticmethod
    def _tells_answers(view: View, least: float) -> bool:
        """Of yes-or-no answers: one value for yes and one for no, but for a little noise. The correlation is then
        1 / sqrt(1 + 1 / r^2), where r is half the distance of the two over the spread of each."""
        return view.facts.loss in BINARY_LOSSES and view.batch >= 16 and least >= limit("input_answers")

    @staticmethod
    def _gives_classes(view: View) -> Found | None:
        """Some features have one value for each class, batch after batch. Of codes that may be the task (to remember the first
        token); a leak if validation, which has it not, falls behind."""
        for name, what in (("label_given", "Feature"), ("code_given", "Place")):
            told, places = view.every(name, 5), view.every(f"{name}_where", 5)
            if len(told) < (2 if view.sparse else 3) or min(told) < 1 or not places:
                continue
            text = (
                f"{what} {int(places[-1])} of the inputs gives the class away, alone or with others: in {len(told)} batches it had "
                "one and the same value for all samples of a class, and another for the others."
            )
            behind = view.holds_nowhere or view.not_followed > 2 or (view.valid_accuracy < 0.7 and view.level < 0.1)
            severity = "likely" if name == "label_given" or behind else "advice"
            return Found(
                text, REMEDY, [evidence("label_given", min(told))], severity=severity, since=view.history.began
            )
        return None

    def test(self, view: View) -> Found | None:
        if (known := self._looks_ahead(view) or self._gives_classes(view)) is not None:
            return known
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
            f"Feature {int(places[-1])} of the inputs gives the target away: over {len(likeness)} batches their "
            f"correlation is {'1' if least > 0.9999 else f'at least {least:.3g}'}."
        )
        return Found(
            text,
            REMEDY,
            [evidence("input_target", least)],
            severity="likely" if apart or (same and min(shares, default=1.0) == 1) else "advice",
            since=view.history.began,
        )

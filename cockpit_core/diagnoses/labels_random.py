"""The network travels, its steps are right, and yet nothing is learned: labels and inputs have nothing in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence, number
from cockpit_core.diagnosis.limits import limit

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View


FEW_SAMPLES = 2000  # a network that has seen no more need not have learned anything


class LabelsRandom(Diagnosis):
    name = "labels_random"
    title = "labels do not belong to the inputs"
    needs = ("NormTest", "probe/line")
    hold, after, least = 2, 100, 14
    confidence = 0.5
    explains = ("not_learning", "label_noise", "overfitting")
    probe = "line"

    def suspects(self, view: View) -> bool:
        return view.t >= 15 and view.stuck

    def is_early(self, view: View) -> bool:
        """Plateaus of hundreds of steps are healthy. Labels of no use leave the loss at chance, not a little below; real
        targets may be mostly noise, so that little can be learned of them, and that slowly."""
        if view.facts.may_be_noise:
            return view.t < 500 and not (view.finished and view.t >= 200 and view.noise > 0.7)
        return view.level < 0.98 or (view.t < 150 and not 0.985 < view.level < 1.05)

    def test(self, view: View) -> Found | None:
        by_heart = view.never_better and view.level > 0.8  # the training loss falls, and validation gets worse
        if (
            view.level != view.level
            or not (view.stuck or by_heart)
            or view.history.resumed
            or view.broken
            or view.update > 0.05
            or view.t * view.batch < FEW_SAMPLES
            or view.now("target_like_input") == 1
            or (self.is_early(view) and not by_heart)
        ):
            return None
        moved = view.travelled > 0.15 or view.edge > 0.01 or view.straight < limit("straight")
        # Each step helps its own batch, and no other: where samples have something in common, the loss falls.
        own = view.gain_by_step * view.t > limit("own_gain") and view.bent > 0.5
        own = own or by_heart
        healthy_step = not view.edge > 1.2 and view.rate_fall > 0.4 and not view.clipped < 0.5 and not view.silent
        if (
            not moved
            or not healthy_step
            or not (view.late_noise > 0.7 or own)
            or view.typical("dead") > 0.6
            or view.level > 1.15
        ):
            return None
        text = (
            f"The labels may not belong to the inputs: after {view.t} steps the loss is {number(100 * view.level)} % of "
            "that of a constant guess, though the steps are neither too long nor too short, and "
            + self._say_why(view, by_heart)
        )
        remedy = (
            "Look at twenty samples with their labels as the loop sees them; look for inputs and labels that are "
            "shuffled apart. Either that, or the inputs do not tell the label: training on 20 samples until they "
            "are known by heart decides."
        )
        numbers = [
            evidence("level", view.level),
            evidence("noise", view.late_noise),
            evidence("gain of all steps on their own batches", view.gain_by_step * view.t),
        ]
        return Found(
            text,
            remedy,
            numbers,
            severity="likely",
            since=view.history.began,
        )

    @staticmethod
    def _say_why(view: View, by_heart: bool) -> str:
        if by_heart:
            return (
                f"what little is learned makes validation worse ({number(100 * view.valid_left)} % of its first loss)."
            )
        if view.late_noise > 0.7:
            return f"the samples never agree (noise {number(view.late_noise)} times the signal)."
        return f"each takes {number(100 * view.gain_by_step)} % off the loss of its own batch and nothing off that of others."

"""Part of the labels has nothing to do with its samples: wrong answers are anywhere among the scores, not second."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence, number
from cockpit_core.diagnosis.limits import limit

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View

SEEN, GAINED = 0.2, 0.7
"""Share of wrong labels that is an alarm where steps help their own samples only, and what all steps together gained on them."""
SURE = 3  # standard errors that the share must be above none
KNOWN, LEARNED = 0.65, 0.75
"""Share of the labels that are not wrong, as far as can be told, that the network gives: one that learns slowly has its labels
anywhere too, at first. The second before it is an alarm."""
LATE = 110
MUCH, LONG = 0.3, 200
"""Of the loss of a constant guess is left where so many targets are wrong that it is an alarm, and steps after which it is told:
networks that have begun to learn are better on clean targets in any case."""


class LabelNoise(Diagnosis):
    name = "label_noise"
    title = "part of the labels is wrong"
    severity = "advice"
    needs = ("wrong_rank",)
    hold, after, least = 2, 80, 6
    confidence = 0.5
    explains = ("overfitting", "not_learning")
    probe = "line"

    def suspects(self, view: View) -> bool:
        return view.t >= LATE and view.flipped > 0.15 and view.answered.rank > limit("wrong_rank")

    @staticmethod
    def _is_lost(view: View) -> bool:
        """What a step gains on its own samples is not seen in the next ones, though much is left: it is not slow, it is noise."""
        late = view.finished or view.t >= 250
        return late and view.transfer < 0.07 and view.gain_by_step * view.t > GAINED and view.level > 0.5

    @staticmethod
    def _differs(view: View) -> Found | None:
        """Answers are right far more often in validation than in training."""
        share = view.better_elsewhere
        if not view.settled or view.dropout > 0.3:  # while it learns, validation comes after what was learned
            return None
        if view.stuck:  # two rates of guessing
            return None
        if not share > limit("better_elsewhere") or not view.t >= LATE or view.broken or view.update > 0.01:
            return None
        text = (
            f"About {number(100 * share)} % of the training labels seem to be wrong: {number(100 * view.right_lately)} % of the "
            f"answers are right in training and {number(100 * view.valid_accuracy)} % in validation. A network is not better "
            "on samples that it has never seen, unless their labels are better."
        )
        remedy = (
            "Look at twenty training samples with the largest losses and their labels. If augmentation makes training harder than "
            "validation, that is the reason instead."
        )
        numbers = [evidence("better_elsewhere", share), evidence("valid_accuracy", view.valid_accuracy)]
        finds_its_way = view.valid_accuracy > 0.9 and not (share > limit("flipped") and view.t >= LONG)
        severity = "advice" if finds_its_way else "likely"
        return Found(text, remedy, numbers, severity=severity, since=view.history.began)

    @staticmethod
    def _is_easier(view: View) -> Found | None:
        """Real targets: much of the training loss is left, and far less of that of validation."""
        part = view.easier_elsewhere
        if not view.settled or view.dropout > 0.1 or not view.facts.is_value or not part < limit("easier_elsewhere"):
            return None
        if not view.level > MUCH or not view.t >= LONG or view.broken or view.update > 0.01:
            return None
        text = (
            f"Part of the training targets seems to be wrong: the loss of validation is {number(100 * part)} % of that of "
            f"training, which is still {number(100 * view.level)} % of a constant guess's. A network is not better on samples "
            "that it has never seen, unless their targets are better."
        )
        remedy = (
            "Look at twenty training samples with the largest losses and their targets. If augmentation or noise makes training "
            "harder than validation, that is the reason instead."
        )
        numbers = [evidence("easier_elsewhere", part), evidence("level", view.level)]
        return Found(
            text, remedy, numbers, severity="advice", since=view.history.began
        )  # hard samples may be the reason

    def test(self, view: View) -> Found | None:
        if (differs := self._differs(view) or self._is_easier(view)) is not None:
            return differs
        share, rank, rows = view.flipped, view.answered.rank, view.answered.rows
        lost = self._is_lost(view)
        trusted = rows >= 150 and view.above_guess > 6 and (view.learns or lost) and not view.broken
        most = 0.9 if lost else 0.6
        if not trusted or not rank > limit("wrong_rank") or not most > share > max(0.05, SURE * view.flipped_error):
            return None
        learned = view.right / (1 - share)
        settled = view.t >= 200 and view.fall[1] < 0.4  # it will not become much better
        if not learned > (0.5 if settled else KNOWN) and not lost:
            return None
        text = (
            f"About {number(100 * share)} % of the labels seem to be wrong: of {number(rows)} answers {number(100 * view.right)} % "
            "are right, and where one is not, the label is no better a second choice than any other class. The label of a sample "
            "that is only hard would come second or third."
        )
        remedy = (
            "Look at twenty samples with the largest losses and their labels. If the labels are right, the inputs do not tell "
            "these samples apart. Else correct or drop them; label smoothing or a bounded loss does less harm meanwhile."
        )
        numbers = [
            evidence("wrong_rank", rank),
            evidence("flipped", share),
            evidence("accuracy", view.right, "share of right answers in training"),
        ]
        # Some noise is in most data, and networks find their way through much of it: what is left of validation decides.
        harmful = share > limit("flipped") and learned > LEARNED and view.t >= LATE
        harmful = (harmful or (lost and share > SEEN)) and not view.valid_accuracy > 0.9
        return Found(text, remedy, numbers, severity="likely" if harmful else "advice", since=view.history.began)

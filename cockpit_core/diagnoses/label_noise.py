"""Part of the labels has nothing to do with its samples: wrong answers are anywhere among the scores, not second."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence, number
from cockpit_core.diagnosis.limits import limit

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View

SURE = 3  # standard errors that the share must be above none
KNOWN, LEARNED = 0.65, 0.75
"""Share of the labels that are not wrong, as far as can be told, that the network gives: one that learns slowly has its labels
anywhere too, at first. The second before it is an alarm."""
LATE = 110


class LabelNoise(Diagnosis):
    name = "label_noise"
    title = "part of the labels is wrong"
    severity = "advice"
    needs = ("wrong_rank",)
    hold, after, least = 2, 80, 6
    confidence = 0.5
    explains = ("overfitting",)

    def test(self, view: View) -> Found | None:
        share, rank, rows = view.flipped, view.answered.rank, view.answered.rows
        trusted = rows >= 150 and view.above_guess > 6 and view.learns and not view.broken
        if not trusted or not rank > limit("wrong_rank") or not 0.6 > share > max(0.05, SURE * view.flipped_error):
            return None
        learned = view.right / (1 - share)
        settled = view.t >= 200 and view.fall[1] < 0.4  # it will not become much better
        if not learned > (0.5 if settled else KNOWN):
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
        harmful = share > limit("flipped") and learned > LEARNED and view.t >= LATE and not view.valid_accuracy > 0.9
        return Found(text, remedy, numbers, severity="likely" if harmful else "advice", since=view.history.began)

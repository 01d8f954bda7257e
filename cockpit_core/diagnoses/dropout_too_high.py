"""Dropout leaves so little that what is left is mostly noise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence, number
from cockpit_core.diagnosis.limits import limit

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View


EARLY, STILL = 40, 0.9  # steps, and a share of chance that most networks are below by then
LATE, REST = 100, 0.55  # nine of ten healthy runs are below that share of chance after so many steps


class DropoutTooHigh(Diagnosis):
    name = "dropout_too_high"
    title = "dropout is too high"
    needs = ("static_dropout", "graph_dropout")
    hold, after, least = 1, 0, 2
    confidence = 0.85
    explains = (
        "label_noise",
        "labels_random",
        "not_learning",
        "data_not_shuffled",
        "batch_too_small",
        "learning_rate_too_low",
        "learning_rate_too_high",
        "init_too_large",
        "dead_units",
        "overfitting",
    )

    probe = "mode"

    def suspects(self, view: View) -> bool:
        return view.dropout >= limit("dropout") and view.t >= 15 and not view.level < 0.25

    def test(self, view: View) -> Found | None:
        p = view.dropout
        if not p >= limit("dropout") or view.now("eval_dropout") > 0 or view.level < 0.25:
            return None
        without = view.eval_level
        if p < 0.95 and (view.t < 40 or (view.thrives and not view.level > REST)):
            return None
        rest = f", and without dropout it is {number(100 * without)} %" if without < view.level else ""
        text = (
            f"Dropout of {p:g} is too high: {number(100 * p)} % of a layer are missing at every step, and the "
            f"loss is still {number(100 * view.level)} % of that of a constant guess{rest}."
        )
        remedy = "Use 0.1 to 0.5."
        # The loss of training is high by the noise alone at first, and where it is good without dropout.
        known = view.level > REST if view.level == view.level else view.struggles
        harmful = (view.t >= LATE and known and not without < 0.25) or (view.wanting and not without < 0.7 * view.level)
        # What is left of a layer says next to nothing of the sample, unless signals get past it.
        harmful = harmful or (p >= limit("dropout_most") and view.t >= EARLY and not view.level < STILL)
        numbers = [evidence("dropout", p), evidence("level", view.level)]
        return Found(text, remedy, numbers, severity="likely" if harmful else "advice", since=view.history.began)

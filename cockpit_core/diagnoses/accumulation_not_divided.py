"""The losses of several backward passes are added up, not averaged: steps are as many times too long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence, number

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View


class AccumulationNotDivided(Diagnosis):
    name = "accumulation_not_divided"
    title = "accumulated losses are not divided"
    needs = ("passes",)
    hold, after, least, sticky = 1, 0, 1, True
    confidence = 0.85
    explains = (
        "learning_rate_too_high",
        "init_too_large",
        "not_learning",
        "dead_units",
        "not_finite",
        "data_not_shuffled",
    )

    def test(self, view: View) -> Found | None:
        passes = max(view.every("passes"), default=0.0)  # a record that a spike set off knows those after it only
        if not passes >= 4 or view.adds_samples:
            return None
        per_pass = view.level0 / passes
        if not 0.7 < per_pass < 1.5 or (view.facts.is_value and not 0.85 < per_pass < 1.3):
            return None
        suffers = (view.spike > 2 and view.lasting) or view.update_max > 0.5 or view.edge > 2 or view.struggles
        thrown = view.update_max > 0.1 and view.travelled > 3 and view.weight_fall > 3  # by steps that were too long
        harm = not view.facts.adaptive and (suffers or (view.wanting and thrown))
        text = (
            f"The losses of {number(passes)} backward passes are added up: together they are "
            f"{number(view.level0)} times the loss of a guess, so gradients are {number(passes)} times too long."
        )
        remedy = f"Call (loss / {number(passes)}).backward(), or divide the learning rate by {number(passes)}."
        return Found(text, remedy, [evidence("level0", view.level0)], severity="likely" if harm else "advice")

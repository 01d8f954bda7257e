"""The network trains in eval mode: dropout does nothing, BatchNorm keeps old statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View

MADE = 60  # steps in which no one has called train()


class EvalMode(Diagnosis):
    name = "eval_mode"
    title = "the model trains in eval mode"
    needs = ("training",)
    hold, after, least = 1, 0, 1
    confidence = 0.95
    explains = ("data_not_shuffled", "not_finite")
    rivals = {  # noqa: RUF012
        "learning_rate_too_high": "model.train(): it is wrong in any case. If the loss still rises, it is the rate as well.",
    }

    def test(self, view: View) -> Found | None:
        modes = view.every("training", 2)
        if not modes or max(modes) > 0 or not view.static("static_mode_dependent") > 0:
            return None
        idle, norms = view.now("eval_dropout"), view.now("eval_batchnorm")
        parts = (["dropout does nothing"] if idle > 0 else []) + (
            ["BatchNorm uses its old statistics and learns no new ones"] if norms > 0 else []
        )
        if not parts:
            return None
        text = f"The model trains in eval mode: {' and '.join(parts)}."
        remedy = "Call model.train() before the training loop, and again after every validation."
        suffers = (view.struggles and view.t >= 100) or (view.spike > 3 and view.lasting)
        suffers = suffers or (
            (view.lingers or view.wanting) and view.are_fresh(view.facts.layers)
        )  # nobody has trained statistics into it
        # Statistics that nobody has ever trained: what they were made with is no normalisation.
        suffers = suffers or (
            view.static("static_batchnorm_untrained") > 0 and view.t >= MADE and not (view.does_well or view.thrives)
        )
        severity = (
            "likely" if norms > 0 and suffers else "advice"
        )  # without dropout a network trains, only less robustly
        return Found(text, remedy, [evidence("training", 0.0, "1 = training mode")], severity=severity)

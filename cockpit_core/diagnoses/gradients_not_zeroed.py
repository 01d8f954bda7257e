"""The gradient of the step before is still there when the backward pass begins: the optimizer follows a sum of all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence, number
from cockpit_core.diagnosis.reading import ratio

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View

GROWN = 4  # times this step's own gradient


class GradientsNotZeroed(Diagnosis):
    name = "gradients_not_zeroed"
    title = "gradients are not zeroed"
    severity = "broken"
    needs = ("leftover",)
    hold, after, least = 1, 1, 2
    confidence = 0.99
    explains = (
        "learning_rate_too_high",
        "momentum_too_high",
        "data_not_shuffled",
        "not_learning",
        "labels_random",
        "label_noise",
        "not_finite",
        "dead_units",
        "init_too_large",
        "weight_decay_too_high",
        "learning_rate_too_low",
    )

    @staticmethod
    def _adds_up(view: View) -> Found | None:
        """Nothing is left over when a backward pass begins, and what the optimizer gets grows all the same, from this step's own
        gradient at the first step: somebody keeps the sum by hand."""
        first = [ratio(o.get("GradNormClipped"), o.get("GradNorm")) for o in view.history.early]
        rises = len(first) == 4 and first == sorted(first) and first[0] < 1.01 and first[-1] > 2
        if not rises or not view.clipped > GROWN or view.now("passes") != 1 or not view.facts.single:
            return None
        text = (
            f"The optimizer follows {number(view.clipped)} times this step's own gradient, and at the first step it was the "
            "gradient itself: those of earlier steps are added to it."
        )
        remedy = "Look at what is written into p.grad between backward() and step(); a sum over steps must begin anew at each."
        return Found(text, remedy, [evidence("clipped", view.clipped)], since=view.history.began)

    def test(self, view: View) -> Found | None:
        if view.static("static_unoptimized") > 0:  # nobody zeroes the gradients of tensors that no optimizer holds
            return None
        if (adds_up := self._adds_up(view)) is not None:
            return adds_up
        left = [v for seen in view.late[-8:] if seen.step > 0 and (v := seen.get("signal/leftover")) == v][-4:]
        enough = 1 if view.clipped > 1.5 else 3
        if len(left) < enough or any(value != 1 for value in left) or not view.facts.single or view.still:
            return None
        if view.clipped == 1:  # what the optimizer got is this step's gradient alone
            return None
        text = (
            "Gradients are never set to zero: when a backward pass begins, that of the step before is still "
            f"there, and the optimizer follows their sum ({number(view.clipped)} times this step's own gradient)."
        )
        remedy = "Call optimizer.zero_grad() before loss.backward() at every step."
        return Found(text, remedy, [evidence("leftover", 1.0), evidence("clipped", view.clipped)])

"""There is a gradient, and no parameter has moved since the run began."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence, number

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View

SEEN = 12


class NothingMoves(Diagnosis):
    name = "nothing_moves"
    title = "no parameter moves"
    severity = "broken"
    needs = ("Distance",)
    hold, after, least = 1, 15, 4
    confidence = 0.95
    explains = (
        "not_learning",
        "labels_random",
        "learning_rate_too_low",
        "clipping_too_hard",
        "parameters_not_optimized",
        "vanishing_gradients",
    )

    before_training = True  # there may never be a step

    @staticmethod
    def _tell_no_step(losses: float) -> Found:
        text = f"No parameter has moved: {number(losses)} losses were computed, and the optimizer's step() was never called."
        return Found(
            text,
            "Call optimizer.step() after loss.backward().",
            [evidence("losses without a step", losses, "losses that were computed, with no step behind them")],
        )

    @staticmethod
    def _is_gone(view: View) -> Found | None:
        """Also where weight decay moves the parameters."""
        left, sizes = view.values("GradNormClipped", SEEN), view.values("GradNorm", SEEN)
        if min(len(left), len(sizes)) < 4 or max(left) > 0 or not min(sizes) > 0 or view.history.resumed:
            return None
        text = "There is a gradient, and it is gone when the optimizer steps: step() gets nothing but zeros."
        remedy = "Call optimizer.zero_grad() before loss.backward(), never between backward() and step()."
        numbers = [
            evidence("GradNorm", sizes[-1]),
            evidence("GradNormClipped", 0.0, "length of what the optimizer gets"),
        ]
        return Found(text, remedy, numbers, since=view.history.began)

    def test(self, view: View) -> Found | None:
        if view.history.in_vain:
            return self._tell_no_step(view.history.in_vain)
        if (lost := self._is_gone(view)) is not None:
            return lost
        gone = view.values("Distance", SEEN)
        if (
            len(gone) < 4
            or max(gone) > 0
            or view.update_max > 0
            or view.history.resumed
            or not view.last("GradNorm") > 0
        ):
            return None
        text = "No parameter has moved since the run began, though there is a gradient: "
        if view.rate == 0:
            text += "the learning rate is 0."
            remedy = "Give the optimizer a learning rate; look at a schedule that begins or ends at 0."
        else:
            text += "steps are lost in rounding, or the optimizer moves copies."
            remedy = (
                "Multiply the learning rate by 1,000; make the optimizer after the model is complete and on its device."
            )
        numbers = [evidence("Distance", gone[-1]), evidence("GradNorm", view.last("GradNorm"))]
        return Found(text, remedy, numbers, since=view.history.began)

"""The first layers get a gradient a thousand times smaller than the last ones, and nothing is learned."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence, fallen, number
from cockpit_core.diagnosis.limits import limit

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View


LEAST = 0.1  # of the length that torch gives a matrix: a last layer that begins small is meant so, and grows soon


class VanishingGradients(Diagnosis):
    name = "vanishing_gradients"
    title = "gradients vanish on their way back"
    needs = ("GradNorm",)
    hold, after, least = 1, 0, 2
    confidence = 0.85
    explains = ("not_learning", "labels_random", "label_noise", "learning_rate_too_low")

    @staticmethod
    def _is_flat(view: View, ratio: float) -> bool:
        """From the first step on nothing gets through either way: outputs of all samples agree to four digits, and the first
        layers get next to no gradient, though no layer is small by itself (a last one may be, and grows soon)."""
        flat = 0 < view.first("output_spread") < limit("output_flat") and 0 < ratio < limit("vanishing")
        return flat and view.least_scale > LEAST and not view.static("static_constant") > 0

    def test(self, view: View) -> Found | None:
        ratio, where = view.vanishing
        # One answer for all samples, which may be far better than a guess (the mean picture).
        rests = view.stuck and view.wanting
        if (
            ((view.gain > 0.3 or view.learns) and not rests)
            or view.silent
            or view.history.resumed
            or view.typical("dead") >= limit("dead")
        ):
            return None
        # Where normalisation follows, small gradients are enough: then the loss falls.
        small = 0 < ratio < limit("vanishing") and ((view.suffers and view.drop < 0.1) or rests)
        # The output hardly depends on the input though the weights are as usual: what shrinks it shrinks gradients too.
        # (A last layer that begins with zeros says nothing of that kind.)
        fades = 0 < view.first("output_spread") < 1e-4 and view.weight_scale > 0.4 and view.struggles and ratio < 1
        fades = fades and view.least_scale > LEAST and not view.static("static_constant") > 0
        if not (small or fades or self._is_flat(view, ratio)):
            return None
        text = (
            f"Gradients vanish: that of {where} is {number(1 / ratio)} times smaller than the largest, and "
            f"{fallen(view.gain)}."
        )
        remedy = (
            "Use ReLU or GELU in place of sigmoid or tanh, add normalisation or skip connections, and look at "
            "the initialisation."
        )
        began = view.history.began  # harm takes time to be seen; the gradients were small from the start
        return Found(text, remedy, [evidence("vanishing", ratio, layer=where)], [where], since=began)

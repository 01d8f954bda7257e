"""Clipping cuts every gradient to a small part: the learning rate is that much smaller than it says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence, number
from cockpit_core.diagnosis.limits import limit

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View


class ClippingTooHard(Diagnosis):
    name = "clipping_too_hard"
    title = "gradients are clipped too hard"
    needs = ("GradNormClipped",)
    hold, after, least = 1, 4, 2
    confidence = 0.9
    explains = ("learning_rate_too_low", "not_learning", "labels_random", "label_noise")

    def test(self, view: View) -> Found | None:
        short = (
            not view.update > 2e-3 or view.decay_share > 1
        )  # a high learning rate may make up for it, decay does not
        hard = (view.clipped < limit("clipped") and not view.learns and short) or (
            view.clipped < 0.1 and view.drop < 0.1 and view.t > 20 and short
        )
        hard = hard or (view.clipped < 0.3 and view.creeps and not view.learns)  # trial steps say so
        hard = hard or self._has_held_back(view)
        indifferent = view.facts.adaptive and not (view.stuck and view.t >= 60)  # to a factor on all gradients
        if not hard or indifferent or self.now_scaled(view) or not view.clipped > 0:  # zero: gone, not clipped
            return None
        norm = view.last("GradNorm")
        text = (
            f"Gradients are clipped too hard: the optimizer gets {number(100 * view.clipped)} % of each "
            "gradient's length" + ("." if view.facts.adaptive else ", so that every step is that much shorter.")
        )
        remedy = f"Clip at about {number(norm)} (the usual length of the gradient)" + (
            "." if view.facts.adaptive else f", or multiply the learning rate by {number(1 / view.clipped)}."
        )
        return Found(text, remedy, [evidence("clipped", view.clipped)])

    @staticmethod
    def _has_held_back(view: View) -> bool:
        """The run is over with much of the loss left; its steps were short to the end, most of each was cut off, and trial steps
        16 times as long would have done as well."""
        short = view.update < limit("update_low") and view.straight > limit("straight")
        return view.finished and view.level > limit("left_over") and short and view.clipped < 0.3

    @staticmethod
    def now_scaled(view: View) -> bool:
        """Under a loss scale, "clipped" may be a gradient that is still to be unscaled."""
        return view.now("loss_scale") == view.now("loss_scale")

"""Gradients are clipped while the loss scale is still on them: the limit is thousands of times too hard."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence, number

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View


FACTOR = 30  # times the scale: clipping at 1 leaves 1 / |g| of the gradient, times the scale


class ClippedBeforeUnscaled(Diagnosis):
    name = "clipped_before_unscaled"
    title = "gradients are clipped before they are unscaled"
    needs = ("loss_scale",)
    hold, after, least = 1, 2, 3
    confidence = 0.85
    explains = ("clipping_too_hard", "learning_rate_too_low", "not_learning")

    def test(self, view: View) -> Found | None:
        scale = view.now("loss_scale")
        if not scale > 16 or not view.clipped * scale < FACTOR or not 0 < view.clipped < 0.01:
            return None
        text = (
            f"Gradients seem to be clipped before they are unscaled: the optimizer gets {number(view.clipped)} of "
            f"them, at a loss scale of {scale:g}."
        )
        remedy = "Call scaler.unscale_(optimizer) before clip_grad_norm_."
        return Found(text, remedy, [evidence("clipped", view.clipped), evidence("loss_scale", scale)])

"""Gradients are too small for half precision: they become zero on their way back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence, listed
from cockpit_core.diagnosis.limits import limit

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View


class HalfPrecisionUnderflow(Diagnosis):
    name = "half_precision_underflow"
    title = "gradients underflow in half precision"
    needs = ("output_half", "graph_half")
    hold, after, least = 2, 0, 3
    confidence = 0.8
    explains = ("graph_detached", "dead_units", "vanishing_gradients", "not_learning", "learning_rate_too_low")

    def test(self, view: View) -> Found | None:
        scaled = view.now("loss_scale") > 1
        half = view.now("output_half") > 0 or view.first("graph_half") > 0
        norms = view.values("GradNorm", 4)
        none = len(norms) >= 3 and max(norms) == 0
        if not half or scaled or not (view.silent or none) or (view.typical("dead") >= limit("dead") and not none):
            return None
        what = "all tensors" if none else listed(view.silent)
        text = (
            f"Gradients underflow: the network computes in float16 without a loss scale, and {what} get gradients that are "
            "exactly zero."
        )
        remedy = "Use torch.amp.GradScaler (scale the loss, unscale before clipping), or bfloat16."
        return Found(text, remedy, [evidence("tensors without a gradient", len(view.silent))], view.silent)

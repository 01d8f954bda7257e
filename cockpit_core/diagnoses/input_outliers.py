"""A few samples are many times larger than all others, and pull the network their way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence, number
from cockpit_core.diagnosis.limits import limit

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View


class InputOutliers(Diagnosis):
    name = "input_outliers"
    title = "some inputs are outliers"
    needs = ("input_tail",)
    hold, least = 1, 8
    confidence = 0.85
    explains = (
        "inputs_not_scaled",
        "learning_rate_too_high",
        "data_not_shuffled",
        "label_noise",
        "not_learning",
        "not_finite",
        "dead_units",
        "labels_random",
        "init_too_large",
        "targets_not_scaled",
    )

    def test(self, view: View) -> Found | None:
        tails = view.every("input_tail", 30)
        far = [tail for tail in tails if tail > limit("input_tail")]
        if len(far) < 3 or len(far) < 0.08 * len(tails) or view.typical("input_zeros") > 0.5:
            return None
        pull = [
            seen.get("signal/loss_max") / (abs(seen.get("signal/loss_median")) + 1e-9)
            for seen in view.late[-30:]
            if seen.get("signal/input_tail") > limit("input_tail")
        ]
        heavy = [value for value in pull if value > 8]
        text = (
            f"Some inputs are outliers: in {len(far)} of the last {len(tails)} tracked batches one sample is more "
            f"than {number(limit('input_tail'))} times as far from the middle as usual (up to "
            f"{number(max(far))})."
        )
        remedy = (
            "Look at those samples (the panel of largest individual gradients names them); correct, clip or drop them."
        )
        severity = "likely" if len(heavy) >= 2 or max(far) > 20 else "advice"
        return Found(text, remedy, [evidence("input_tail", max(far))], severity=severity)

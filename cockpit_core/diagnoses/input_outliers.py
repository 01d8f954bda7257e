"""A few samples are many times larger than all others, and pull the network their way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence, number
from cockpit_core.diagnosis.facts import LIKELIHOODS
from cockpit_core.diagnosis.limits import limit

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View


class InputOutliers(Diagnosis):
    name = "input_outliers"
    title = "some inputs are outliers"
    needs = ("input_tail",)
    hold, after, least = 1, 0, 2
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
        "overfitting",
    )

    @staticmethod
    def _are_far(view: View) -> Found | None:
        """Single numbers, in samples of any kind (hot pixels, a sensor that spikes, a code for what is missing)."""
        if not view.has_far_inputs:
            return None
        share, part, size = (view.typical(name) for name in ("input_far", "input_far_part", "input_rms"))
        text = (
            f"Some inputs hold numbers far beyond all others of their feature: {number(100 * share)} % of the numbers make "
            f"{number(100 * part)} % of the squares, and the root mean square {number(size)}."
        )
        remedy = (
            "Look for codes of missing values (-9999), broken sensors, hot pixels; correct or clip them, then scale."
        )
        numbers = [evidence("input_far", share, "share of numbers that are far"), evidence("input_rms", size)]
        harmful = view.struggles or view.suffers or view.wanting or view.broken or view.level0 > 5
        return Found(text, remedy, numbers, severity="likely" if harmful else "advice", since=view.history.began)

    def test(self, view: View) -> Found | None:
        if (single := self._are_far(view)) is not None:
            return single
        tails = view.every("input_tail", 30)
        far = [tail for tail in tails if tail > limit("input_tail")]
        seldom = len(far) >= 1 and len(tails) <= 5 and view.t >= 80  # few batches were looked at
        extreme = (
            (len(far) >= 2 or seldom)
            and max(far) > 3 * limit("input_tail")
            and ((view.struggles and view.t >= 60) or view.suffers)
            and not (view.improves and view.drop > view.usual_drop)  # it falls as it should: no harm to be seen
        )
        usual = len(far) >= 3 and len(far) >= 0.08 * len(tails) and view.has_seen(8)
        # One was seen, and some batches cost far more than the first: those that have one, as far as can be told.
        jumps = len(far) >= 1 and view.spike > 2 and view.unfinished
        if not (extreme or usual or jumps) or view.typical("input_zeros") > 0.5:
            return None
        uneven = view.typical("input_ratio") > limit("input_ratio")
        if uneven and not view.typical("input_tail") > 3 * limit("input_tail"):  # a scale is that of all samples
            return None  # one feature decides how far a sample is from the middle: inputs_not_scaled
        pull = [
            seen.get("signal/loss_max")
            for seen in view.late[-30:]
            if seen.get("signal/input_tail") > limit("input_tail")
            and view.facts.loss not in LIKELIHOODS  # they have no zero: there is no "times as much"
            and seen.get("signal/loss_max") > 8 * abs(seen.get("signal/loss_median"))
        ]
        heavy = [value for value in pull if value > 3 * abs(view.loss0)]  # they cost more than anything at the start
        alone = [value for value in heavy if value > 0.5 * view.batch * abs(view.loss)]  # than all others of a batch
        suffers = view.struggles if view.level == view.level else view.t >= 40 and not view.thrives
        text = (
            f"Some inputs are outliers: in {len(far)} of the last {len(tails)} tracked batches one sample is more "
            f"than {number(limit('input_tail'))} times as far from the middle as usual (up to "
            f"{number(max(far))})."
        )
        remedy = (
            "Look at those samples (the panel of largest individual gradients names them); correct, clip or drop them."
        )
        spoiled = view.not_followed > 3 and view.valid_left > 0.5  # training gets used to them, validation has none
        spoiled = spoiled or (view.wanting and view.facts.loss not in LIKELIHOODS)
        severity = (
            "likely" if extreme or spoiled or jumps or (len(heavy) >= 2 and suffers) or len(alone) >= 3 else "advice"
        )
        return Found(text, remedy, [evidence("input_tail", max(far))], severity=severity)

"""A network that knows nothing starts by being sure: its first loss is far above that of a guess."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence, number
from cockpit_core.diagnoses.inputs_not_scaled import LIFTS
from cockpit_core.diagnosis.limits import limit

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View


class InitTooLarge(Diagnosis):
    name = "init_too_large"
    title = "the initialisation is too large"
    needs = ("output_rms",)
    hold, after, least, sticky = 1, 0, 1, True
    confidence = 0.85
    explains = (
        "learning_rate_too_high",
        "learning_rate_too_low",  # against weights and a loss that are as large as that
        "data_not_shuffled",
        "vanishing_gradients",
        "saturated_units",
        "dead_units",
        "not_finite",
        "batch_too_small",
        "clipping_too_hard",  # of gradients that are as large as that
    )

    def test(self, view: View) -> Found | None:
        if view.adds_samples or view.history.resumed or view.first("input_rms") > limit("input_rms"):
            return None
        if view.first("input_rms") > LIFTS and view.weight_scale < 2.8:
            return None  # the inputs are
        if view.first("passes") > 1:
            return None
        start, shown = view.level0, "level0"
        large = view.weight_scale > 4  # weights of the usual size: then little else need be wrong
        if view.first("label_top_share") == 1 and not large:
            return None  # one class alone: what the first loss is hangs on whether the fresh network happens to like it
        size, scale = view.first("output_spread"), max(view.first("target_std"), view.first("target_scale"))
        far = size > (8 if view.level0 != view.level0 else 1.5 if large else 4) * scale
        if (
            (view.facts.is_value or view.level0 != view.level0)
            and far
            and view.first("target_scale") < limit("target_scale")
        ):
            start, shown = size / scale, "output spread over that of the targets"
            what = f"the outputs of the fresh network spread {number(start)} times as far as the targets"
        elif not view.facts.is_value and start > (1.5 if large else limit("level0")):
            what = f"the first loss is {number(start)} times that of a guess"
        elif (large and start > 2) or (view.weight_scale > 2.8 and start > 8):
            what = f"the first loss is {number(start)} times that of always giving the mean"
        elif start != start and view.weight_scale > 5 and view.struggles:
            start, shown, what = view.weight_scale, "weight_scale", "nothing is learned"
        else:
            return None
        if large:
            what += f", and the weights are {number(view.weight_scale)} times as long as torch makes them"
        text = f"The initialisation is too large: {what}."
        factor = view.weight_scale if large else max(2.0, start**0.5)
        remedy = (
            f"Divide the initial weights by about {number(factor)} (torch's default, Kaiming or Xavier), at least in the last "
            "layer."
        )
        # A few times too large is forgotten in some steps, mostly.
        slow = view.weight_scale > 2.8 and view.is_high and view.t >= 80  # coming down from there is no progress
        harmful = start > 10 or (large and start > 4) or view.struggles or slow or (large and view.wanting)
        severity = "likely" if harmful else "advice"
        # Where the loss takes the logarithm of a probability that rounds to zero, that is what makes it infinite.
        return Found(text, remedy, [evidence(shown, start)], severity=severity, alone=view.now("plain_log") > 0)

"""Signals fade on their way through the fresh network: its output hardly depends on the input."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence, fallen, number
from cockpit_core.diagnosis.limits import limit

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View


SOON = 20  # steps


class InitTooSmall(Diagnosis):
    name = "init_too_small"
    title = "the initialisation is too small"
    needs = ("output_spread",)
    hold, after, least = 1, 0, 2
    confidence = 0.8
    explains = (
        "not_learning",
        "labels_random",
        "label_noise",
        "learning_rate_too_low",
        "learning_rate_too_high",
        "vanishing_gradients",
        "dead_units",
    )

    def test(self, view: View) -> Found | None:
        spread, size = view.first("output_spread"), view.first("output_rms")
        fading = view.first("activation_last") < 1e-2 * view.first("activation_first")
        flat = 0 < spread < limit("output_spread")
        if view.history.resumed or not (flat or fading) or view.thrives or not view.weight_scale > 0:
            return None  # zeros are constant, not small
        if view.first("dead") >= limit("dead0") and not view.weight_scale < 0.1:
            return None
        # Weights of the usual size whose signal fades are too many layers: vanishing_gradients says so.
        if view.static("static_constant") > 0.7 * view.static("static_matrices") or not view.weight_scale < 0.4:
            return None
        # No signal reaches the output, and steps that depend on the gradient's size, or are short, do not make one soon.
        slow = not view.facts.adaptive or regrowth(view) > SOON
        none = view.weight_scale < 0.1 and 0 < spread < limit("output_none") and slow
        late = view.t >= max(60.0, regrowth(view))
        harmful = none or (late and (view.lags if view.weight_scale < 0.1 else view.struggles))
        text = (
            "The initialisation is too small: the weights are "
            f"{number(view.weight_scale)} times as long as torch makes them, at the first step the outputs of different "
            f"samples differ by {number(spread)} only, and {fallen(view.drop) if view.t else 'signals must grow first'}."
        )
        remedy = (
            "Initialise with the scale of Kaiming or Xavier, 1 / sqrt(inputs of a unit); in deep networks add "
            "normalisation or skip connections."
        )
        numbers = [evidence("weight_scale", view.weight_scale), evidence("output_spread", spread)]
        numbers.append(evidence("output_rms", size))
        return Found(text, remedy, numbers, severity="likely" if harmful else "advice")


def regrowth(view: View) -> float:
    """Steps in which an adaptive optimizer, whose steps do not depend on the gradient's size, makes weights of usual size."""
    count = sum(math.prod(shape) for shape in view.facts.shapes if len(shape) > 1)
    usual = math.sqrt(sum(shape[0] / 3 for shape in view.facts.shapes if len(shape) > 1) / max(1, count))
    return 2 * usual / view.rate if view.facts.adaptive and view.rate > 0 else 0.0

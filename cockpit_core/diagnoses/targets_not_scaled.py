"""Targets are far from what an output layer starts with: the network spends its time growing a constant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence, number
from cockpit_core.diagnosis.limits import limit

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View

FAR_COUNTS = 100
NO_TAIL = 10  # deviations between the smallest and the largest target


class TargetsNotScaled(Diagnosis):
    name = "targets_not_scaled"
    title = "targets are not scaled"
    needs = ("target_scale",)
    hold, after, least = 1, 0, 1
    confidence = 0.9
    explains = (
        "learning_rate_too_high",
        "learning_rate_too_low",
        "init_too_large",
        "init_too_small",
        "not_learning",
        "vanishing_gradients",
        "not_finite",
        "labels_random",
        "label_noise",
        "data_not_shuffled",
        "dead_units",
        "clipping_too_hard",  # of gradients that are as large as the targets
        "output_activation",  # which reaches one, where the targets go to hundreds
    )

    def test(self, view: View) -> Found | None:
        scale, std = view.typical("target_scale"), view.typical("target_std")
        if (
            view.typical("target_max") - view.typical("target_min") < NO_TAIL * std
        ):  # most are zero, as in dark pictures
            scale = max(scale, std)
        density = view.facts.loss == "GaussianNLLLoss"
        # Counts have no other scale, but a network that gives logarithms begins at one: hundreds are far away.
        density = density or (view.facts.loss == "PoissonNLLLoss" and scale > FAR_COUNTS)
        if not (view.real_targets or density) or not scale > limit("target_scale"):
            return None
        far = view.first("output_rms") < 0.1 * scale
        poor = view.level > 1 and (view.t >= 10 or scale > 1000)  # worse than always giving the mean
        poor = poor or view.spike > 3 or view.broken or (view.level != view.level and view.drop < 0.5 and view.t >= 20)
        if not far:
            return None
        text = (
            f"The targets are not scaled: their usual size is {number(scale)}, and the network began at "
            f"{number(view.first('output_rms'))}."
        )
        remedy = "Subtract their mean and divide by their standard deviation; undo it on what the network predicts."
        return Found(text, remedy, [evidence("target_scale", scale)], severity="likely" if poor else "advice")

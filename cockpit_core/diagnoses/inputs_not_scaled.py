"""Inputs are far from a scale of one, and the first layer suffers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence, number
from cockpit_core.diagnosis.limits import limit

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View


LIFTS = 2.5  # root mean square of inputs that a first loss far above a guess comes from
FAR = 3  # times the limit: a scale is that of all samples, and leaves none so far from the others


class InputsNotScaled(Diagnosis):
    name = "inputs_not_scaled"
    title = "inputs are not scaled"
    needs = ("input_rms",)
    hold, after, least = 1, 0, 1
    confidence = 0.85
    explains = (
        "learning_rate_too_high",
        "dead_units",
        "init_too_large",
        "data_not_shuffled",
        "not_learning",
        "labels_random",
        "label_noise",
        "vanishing_gradients",
        "saturated_units",
        "not_finite",
        "batch_too_small",
        "learning_rate_too_low",
        "targets_not_scaled",
        "overfitting",
    )

    def test(self, view: View) -> Found | None:
        size, spread = view.typical("input_rms"), view.typical("input_ratio")
        sparse = view.typical("input_zeros") > 0.5
        # Weights are as long as usual, and the first loss is far up: that comes from inputs.
        lifts = size > LIFTS and view.level0 > limit("level0") and view.weight_scale < 2.8
        large, uneven = size > limit("input_rms") or lifts, spread > limit("input_ratio") and not sparse and size > 1
        if 0 < size < limit("input_small") and view.struggles and view.static("static_norm_first") != 1:
            text = (
                f"The inputs are not scaled: they have a root mean square of {number(size)}, and initialisation and learning "
                "rate assume about 1. The biases drown them."
            )
            remedy = "Divide each feature by its standard deviation, after subtracting its mean."
            return Found(text, remedy, [evidence("input_rms", size)])
        longest = view.typical("input_tail")  # outliers make any input large, and far ones any feature
        tail = longest > limit("input_tail") and (not uneven or longest > FAR * limit("input_tail"))
        if not (large or uneven) or tail or view.has_far_inputs:
            return None
        far = view.first("output_spread") > 20 * view.first("target_std")
        # Embeddings of codes, or a normalisation behind the first layer, keep the scale of the inputs from the rest.
        arrives = not view.first("activation_first") < 0.2 * size or view.first("saturated") > 0.3
        # Gates and tanh hide it too: there it has filled them.
        arrives = arrives or (size > 10 * limit("input_rms") and view.t >= 60)
        # Thrown far above chance at first, it comes down fast: whether it gets along is seen later.
        returns = view.t < 60 and view.drop > 0.5 and not view.fall[1] <= 1
        suffers = (
            far
            or view.level0 > (20 if not lifts or size > limit("input_rms") else 5)
            or (view.spike > 10 and view.lasting)
            or (arrives and ((view.struggles and not returns) or view.wanting))
        )
        what = (
            f"have a root mean square of {number(size)}"
            if large
            else f"have features whose scales differ by {number(spread)}"
        )
        text = f"The inputs are not scaled: they {what}, and initialisation and learning rate assume about 1."
        remedy = (
            "Subtract the mean and divide by the standard deviation of each feature (for pictures of 0 to 255: "
            "divide by 255 first)."
        )
        severity = "likely" if suffers and view.static("static_norm_first") != 1 else "advice"
        return Found(text, remedy, [evidence("input_rms", size), evidence("input_ratio", spread)], severity=severity)

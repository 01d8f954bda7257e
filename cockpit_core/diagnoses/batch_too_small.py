"""So few samples that a step follows their noise more than what they have in common."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence, fallen, number

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View


class BatchTooSmall(Diagnosis):
    name = "batch_too_small"
    title = "the batch is too small"
    needs = ("NormTest",)
    hold, after, least = 1, 80, 4
    confidence = 0.7
    explains = ("data_not_shuffled", "label_noise", "labels_random", "overfitting")
    rivals = {  # noqa: RUF012
        "learning_rate_too_high": "a run with a fifth of the learning rate. If its loss falls smoothly, it was the rate; if it "
        "falls slowly and is as rough, the batch.",
    }

    def test(self, view: View) -> Found | None:
        few = view.knows_batch and view.batch <= 4 and view.now("passes") == 1 and not view.now("label_count") > 16
        poor = view.level > 0.3 or (view.level != view.level and view.drop < 0.3)
        noisy = view.noise > 0.2 * view.batch
        unknown = (
            view.noise != view.noise and view.unfinished
        )  # individual gradients are too dear: few samples, and slow
        slow = view.settled and view.lags and not view.level > 1.2  # whatever its noise was at the start
        if not few or not (noisy or unknown or slow) or not poor or (view.drop > 0.6 and not view.unfinished):
            return None
        harmful = view.drop < 0.15 or view.level > 1 or view.struggles or view.suffers or view.unfinished
        size = max(16, min(128, 2 ** round(math.log2(max(16.0, view.batch * view.noise if noisy else 16.0)))))
        text = (
            f"The batch of {view.batch} is too small: its samples pull in different directions (the noise in its gradient is "
            f"{number(100 * view.noise)} % of the signal), and {fallen(view.drop)}."
            if noisy
            else f"The batch of {view.batch} is too small: so few samples pull every step their own way, and the loss is still "
            f"{number(100 * view.level)} % of that of a constant guess."
        )
        remedy = (
            f"Use batches of about {size} (or accumulate gradients), or divide the learning rate by "
            f"{number(max(2.0, math.sqrt(view.noise)) if noisy else 4.0)}."
        )
        numbers = [evidence("noise over batch size", view.noise), evidence("level", view.level)]
        return Found(text, remedy, numbers, severity="likely" if harmful else "advice", since=view.history.began)

"""BatchNorm takes mean and variance of so few samples that they are noise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence, number

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View


class BatchnormFewSamples(Diagnosis):
    name = "batchnorm_few_samples"
    title = "BatchNorm sees too few samples"
    needs = ("static_batchnorms",)
    hold, after, least = 3, 5, 4
    confidence = 0.85
    explains = ("batch_too_small", "data_not_shuffled", "overfitting")
    rivals = {  # noqa: RUF012
        "learning_rate_too_high": "a run with a fifth of the learning rate. If it is as bad, it is BatchNorm.",
    }

    def test(self, view: View) -> Found | None:
        passes = max(1.0, view.now("passes"))
        per_pass = view.batch / passes
        if (
            not view.static("static_batchnorms") > 0
            or not view.knows_batch
            or not per_pass <= 4
            or view.now("eval_batchnorm") > 0
            or not per_pass >= 1
        ):
            return None
        text = (
            f"BatchNorm takes its statistics of {number(per_pass)} samples: they are mostly noise, and differ "
            "from those of evaluation."
        )
        harmful = view.suffers or view.lingers or (view.t >= 40 and view.struggles) or view.not_followed > 4
        remedy = "Use batches of 16 or more, or GroupNorm or LayerNorm in place of BatchNorm."
        return Found(
            text,
            remedy,
            [evidence("samples per pass", per_pass)],
            severity="likely" if harmful else "advice",
            since=view.history.began,
        )

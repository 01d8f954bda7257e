"""The softmax runs over the samples of the batch instead of over the classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence
from cockpit_core.diagnosis.limits import limit

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View

TEXT = (
    "The softmax runs over the batch: for each class the scores of all samples add up to 1, so that samples compete with "
    "one another."
)
REMEDY = "Give softmax the dimension of the classes (dim=1); CrossEntropyLoss needs none at all."


class SoftmaxOverBatch(Diagnosis):
    name = "softmax_over_batch"
    title = "softmax runs over the batch"
    severity = "broken"
    needs = ("row_sum_error",)
    hold, after, least = 1, 0, 1
    confidence = 0.97
    explains = (
        "samples_mixed",
        "not_learning",
        "label_noise",
        "labels_random",
        "vanishing_gradients",
        "learning_rate_too_low",
        "init_too_small",
        "double_softmax",
        "not_finite",
    )

    def test(self, view: View) -> Found | None:
        plain, logs = view.every("column_sum_error", 2), view.every("column_log_sum_error", 2)
        rows = view.every("row_sum_error", 2)
        if view.now("batch_softmax") > 0:  # seen in the graph, whatever shape the scores have by now
            return Found(TEXT, REMEDY, [evidence("batch_softmax", 1.0, "softmax along the batch")])
        # Fewer labels than rows: the rows are parts of one sample (a bag), and may be weighed against one another.
        if view.first("batch_attention") > 0 and not view.typical("label_count") < view.typical("samples"):
            text = "A softmax inside the network runs over the batch: its weights compare samples with one another."
            remedy = "Give the softmax of the attention the dimension of the keys (dim=-1)."
            return Found(text, remedy, [evidence("batch_attention", 1.0, "softmax along the batch")])
        if view.first("query_softmax") > 0:
            text = (
                "A softmax inside the network runs along the wrong dimension: attention weights add up to 1 over the queries, and "
                "are then used as if they did over the keys."
            )
            remedy = "Give the softmax of the attention the dimension of the keys (dim=-1)."
            marks = [evidence("query_softmax", 1.0, "softmax along the queries")]
            return Found(text, remedy, marks, severity="likely")
        if not plain or view.batch < 2:
            return None
        over = max(plain) < limit("row_sum_error") and min(view.every("output_min", 2)) >= 0
        over_logs = view.facts.loss == "NLLLoss" and len(logs) > 0 and max(logs) < limit("row_sum_error")
        if not (over or over_logs) or not max(rows, default=1.0) > limit("row_sum_error"):
            return None
        return Found(TEXT, REMEDY, [evidence("column_sum_error", max(plain), limit="row_sum_error")])

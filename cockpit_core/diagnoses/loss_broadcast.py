"""Output and target have shapes that broadcast: each output is compared with every sample's target."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence, number
from cockpit_core.diagnosis.limits import limit

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View


class LossBroadcast(Diagnosis):
    name = "loss_broadcast"
    title = "the loss compares every output with every target"
    severity = "broken"
    needs = ("broadcast",)
    hold, after, least = 1, 0, 1
    confidence = 0.99
    explains = ("data_not_shuffled", "not_learning", "labels_random", "label_noise", "learning_rate_too_low")

    def test(self, view: View) -> Found | None:
        growth = view.now("broadcast")
        if not growth > limit("broadcast"):
            return None
        text = (
            f"Output and target have different shapes: broadcasting makes {number(growth)} times as many "
            "differences as there are outputs, and the network can only learn the mean."
        )
        remedy = "Give both the same shape, for example target.unsqueeze(1) or output.squeeze(1)."
        return Found(text, remedy, [evidence("broadcast", growth)])

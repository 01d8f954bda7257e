"""Every step sees the same samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View


CLOSE = 4  # steps: within so few no epoch is over


class BatchRepeated(Diagnosis):
    name = "batch_repeated"
    title = "every batch is the same"
    needs = ("batch_checksum", "loss_std")
    hold, after, least = 1, 0, 2
    confidence = 0.9
    explains = ("data_not_shuffled", "overfitting")

    def test(self, view: View) -> Found | None:
        sums = list(view.history.checksums)[-4:]
        same = len(sums) >= 2 and max(sums) - min(sums) < 1e-9
        # Other batches were seen before, and steps are far apart: it is the same place of an epoch in a fixed order.
        steps = [seen.step for seen in view.late if seen.get("signal/batch_checksum") in sums][-2:]
        aliased = view.history.batches > 1 and not (len(steps) == 2 and steps[1] - steps[0] <= CLOSE)
        if view.typical("batch_duplicates") == 1:  # samples that are all alike tell no batches apart
            return None
        if not same or aliased or view.now("calls") > max(1.0, view.now("passes")):
            return None  # several calls: it is the checksum of one of them
        # So few samples, or a number that batches have, are hardly all that there is.
        given = view.typical("samples")  # a loss may count the places of a sample one by one
        size = int(given) if given > 1 else view.batch
        usual = 1 < size <= 128 and (size % 8 == 0 or size < 64)
        text = f"Every tracked step has seen the same {size} samples."
        remedy = (
            "Take the next batch of the loader inside the loop (not once before it). If these samples are all "
            "there are, this is full-batch training and right."
        )
        numbers = [evidence("tracked batches that are the same", len(sums))]
        numbers.append(evidence("fluctuation", view.fluctuation, limit="fluctuation_low"))
        return Found(
            text,
            remedy,
            numbers,
            severity="likely" if usual else "advice",
            alone=not usual,  # full batches, as far as can be told
        )

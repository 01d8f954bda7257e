"""Every step sees the same samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View


CLOSE = 4  # steps: within so few no epoch is over
SAME = 6  # records, counted twice where they are first and last ones, two of them neighbours


def is_usual(size: int) -> bool:
    """Is it a number that batches have, and not all samples that there are?"""
    return 1 < size <= 128 and (size % 8 == 0 or size < 64)


class BatchRepeated(Diagnosis):
    name = "batch_repeated"
    title = "every batch is the same"
    needs = ("batch_checksum", "loss_std")
    hold, after, least = 1, 0, 2
    confidence = 0.9
    explains = ("data_not_shuffled", "overfitting")

    @staticmethod
    def _have_same_targets(view: View) -> Found | None:
        """Inputs are not the same, their targets are, in one and the same order from the first record on: noise or flips were put
        on the same samples."""
        orders = [o.get("signal/target_order") for o in (*view.history.early, *view.late)]
        orders = [order for order in orders if order == order]
        size = int(view.typical("samples")) if view.typical("samples") > 1 else view.batch
        several = view.now("calls") > max(1.0, view.now("passes"))
        if len(orders) < SAME or max(orders) - min(orders) > 1e-9 or several or not is_usual(size):
            return None
        text = f"Every tracked step has seen the same {size} targets in the same order: the samples are the same, changed a little."
        remedy = (
            "Take the next batch of the loader inside the loop; what augments it does not make other samples of it."
        )
        numbers = [evidence("tracked batches with the same targets", len(orders))]
        return Found(text, remedy, numbers, severity="likely", since=view.history.began)

    def test(self, view: View) -> Found | None:
        if (changed := self._have_same_targets(view)) is not None and view.history.batches > 1:
            return changed
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
        usual = is_usual(size)
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

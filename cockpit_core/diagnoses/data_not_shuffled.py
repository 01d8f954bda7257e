"""Batches differ from one another more than their samples do: neighbours in the data stand in one batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence, number
from cockpit_core.diagnosis.limits import limit
from cockpit_core.diagnosis.reading import median, nan

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View

ENOUGH, LATE = 8, 40  # batches that are compared; steps
MOST = 0.5  # of all that inputs differ by


class DataNotShuffled(Diagnosis):
    name = "data_not_shuffled"
    title = "the data are not shuffled"
    needs = ("target_mean",)
    hold, after, least = 1, 0, 2
    confidence = 0.9
    explains = (
        "not_learning",
        "learning_rate_too_high",
        "labels_random",
        "label_noise",
        "not_finite",
        "class_imbalance",
        "overfitting",
    )

    def test(self, view: View) -> Found | None:
        return self._by_targets(view) or self._by_inputs(view)

    @staticmethod
    def _shift(view: View) -> float:
        """How far the inputs of a batch are from those of others, as targets are compared; NaN where few were looked at."""
        known = view.every("input_shift", 24)
        return median(known) if len(known) >= ENOUGH and view.typical("samples") >= 16 else nan

    def _by_inputs(self, view: View) -> Found | None:
        """Whatever the loss is, and whoever makes the targets. Batches may have something in common by right (a distortion, a
        scene): where the loss jumps from batch to batch as well, or nothing is learned, it is the order."""
        shift = self._shift(view)
        if not shift > limit("between"):
            return None
        jumps = view.fluctuation > limit("fluctuation") or view.stuck
        if view.fluctuation != view.fluctuation:  # individual losses are not known
            jumps = jumps or shift > MOST * view.typical("samples")
        good = view.level < 0.1 or view.right_now > 0.93 or view.does_well
        text = (
            f"The data are not shuffled: inputs within a batch are alike, and change from batch to batch {number(shift)} times as "
            "much as they would in shuffled data."
        )
        remedy = "Pass shuffle=True to the DataLoader (or permute the samples at each epoch)."
        severity = "likely" if jumps and not good and view.t >= LATE else "advice"
        return Found(text, remedy, [evidence("between", shift)], severity=severity, since=view.history.began)

    def _by_targets(self, view: View) -> Found | None:
        means, within = view.history.pools.get("target_mean"), view.history.pools.get("target_variance")
        if not means or not within or means[0] < 2:
            return None
        rows = view.typical("target_rows")  # of one pass, where a step has several; a graph's inputs have more rows
        samples = rows if rows == rows else view.typical("samples")  # what older logs hold
        if not samples >= 8:
            return None
        count = means[0]
        between = max(0.0, means[2] / count - (means[1] / count) ** 2) * count / (count - 1)
        jumps = view.history.pools.get("target_jump")
        if jumps:  # from one batch to the next: targets that drift slowly are made by the network itself
            between = min(between, jumps[2] / jumps[0] / 2)
        inside = within[1] / within[0]
        total = between + inside
        if not total > 0:
            return None
        share = between * samples / total  # 1 for independent samples, the batch size for batches of one kind
        many = count >= 8 or (
            count >= 5 and share > 2 * limit("between")
        )  # of so few batches chance makes no such share
        if not share > limit("between") or not share > (0.15 if many else 0.5) * samples:
            return None
        # Real targets may drift because the network makes them itself; in sorted batches they are all alike as well.
        harm = view.struggles and view.t >= 40 and share > 0.4 * samples
        ordered = self._shift(view) > limit("between")  # no network makes the inputs
        if view.facts.is_value and not share > 0.8 * samples and not harm and not ordered:
            return None
        if count < 3 and not share > 2 * limit("between"):
            return None
        text = (
            f"The data are not shuffled: targets within a batch are alike, and change from batch to batch "
            f"{number(share)} times as much as they would in shuffled data."
        )
        remedy = "Pass shuffle=True to the DataLoader (or permute the samples at each epoch)."
        severity = "advice" if view.valid_accuracy > limit("valid_right") else "likely"
        return Found(text, remedy, [evidence("between", share)], severity=severity, since=view.history.began)

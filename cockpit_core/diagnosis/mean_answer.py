"""What the network would lose if it gave every sample its own mean answer: known of any loss, whoever wrote it."""

from __future__ import annotations

from typing import NamedTuple

from cockpit_core.diagnosis.history import FRESH, PROBE
from cockpit_core.diagnosis.reading import Reading, mean, median, nan, ratio
from cockpit_core.foundation.kept import kept

LAST = 3  # trials that count
SAME = 0.97  # of the loss of the mean answer: what is left is within what batches differ
SHARE = 0.15  # of all that the loss has fallen by
LEAST = 0.003  # of the first loss, where it has hardly fallen


class Compared(NamedTuple):
    """``loss`` of a batch, and ``mean_loss``: that of the mean answer to it."""

    step: int
    loss: float
    mean_loss: float


class MeanAnswer(Reading):
    """Features of the probe "mean"."""

    @kept
    def compared(self) -> list[Compared]:
        """The last trials, oldest first; none where the last is long ago."""
        if "mean" not in self.history.probes:
            return []
        known = [Compared(seen.step, seen.get(PROBE + "loss"), seen.get(PROBE + "mean_loss")) for seen in self.late]
        known = [one for one in known if one.mean_loss == one.mean_loss][-LAST:]
        return known if known and 3 * known[-1].step >= self.t else []

    @kept
    def own_level(self) -> float:
        """The loss over that of the mean answer. 1: what the network says about a sample is of no use. NaN where a loss may
        be below zero."""
        if min((min(one.loss, one.mean_loss) for one in self.compared), default=0.0) <= 0:
            return nan
        return median(ratio(one.loss, one.mean_loss) for one in self.compared) if len(self.compared) > 1 else nan

    @kept
    def ignores(self) -> bool:
        """Nothing that the network says about single samples has lowered the loss: of all that it has fallen by, next to
        nothing would be lost with the mean answer. (Not by the quotient alone: a loss may have a large constant in it.)"""
        if not self.own_level > SAME:
            return False
        first = mean(seen.get("Loss") for seen in self.history.early[:3] if seen.step <= self.history.began + FRESH)
        gained = mean(one.mean_loss - one.loss for one in self.compared)
        fallen = first - mean(one.loss for one in self.compared)
        return gained < max(SHARE * fallen, LEAST * abs(first))

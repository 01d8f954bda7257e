"""How often the network is right at steps between two records: a few rows of a few steps say little, and labels that are
wrong show in the rows of many."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor, nn

from cockpit_core.signals.graph_losses import read_graph_loss
from cockpit_core.signals.outputs import label_rows

EVERY = 5  # losses, of which one is looked at: some twenty microseconds
MOST_SCORES, ENOUGH = 8192, 1024  # scores of a loss that are looked at; rows until the next record
FRUITLESS = 3  # looks without any classes, after which there are none
CLASSES = (nn.CrossEntropyLoss, nn.NLLLoss)


class Between:
    """Adds up until the next record takes it. Only what lies on the CPU: nobody waits for a device."""

    def __init__(self) -> None:
        self.count = self.fruitless = 0
        self.forget()

    def forget(self) -> None:
        self.rows = self.wrong = self.rank = self.low = 0.0

    def is_due(self) -> bool:
        self.count += 1
        return self.count % EVERY == 0 and self.rows < ENOUGH and self.fruitless < FRUITLESS

    def look_at_call(self, loss_fn: Any, args: tuple, kwargs: dict) -> None:
        """What a loss module was called with."""
        both = [*args, *kwargs.values()]
        if not isinstance(loss_fn, CLASSES) or len(both) < 2 or not all(isinstance(t, Tensor) for t in both[:2]):
            self.fruitless += 1
            return
        self._look(both[0], both[1], loss_fn.ignore_index)

    def look_at_root(self, loss: Tensor) -> None:
        """What is differentiated, where the loss is a function."""
        known = read_graph_loss(loss.grad_fn, None)
        if known is None or not isinstance(known.module, CLASSES) or known.target is None:
            self.fruitless += 1
            return
        self._look(known.output, known.target, known.module.ignore_index)

    def _look(self, z: Tensor, labels: Tensor, ignored: int) -> None:
        """As ``measure_hits``, on arrays and for sums alone, in a third of the time. Of scores that are equal to the label's
        none counts as above it."""
        here = z.is_cpu and labels.is_cpu and not labels.is_floating_point()
        rows = (
            label_rows(z.detach(), labels.detach(), max(32, MOST_SCORES // z.shape[1]))
            if here and z.dim() > 1
            else None
        )
        if rows is None:
            self.fruitless += 1
            return
        scores, truth = as_array(rows[0]), rows[1].numpy()
        inside = truth != ignored
        if not inside.all():
            scores, truth = scores[inside], truth[inside]
        count, classes = scores.shape
        own = scores[np.arange(count), truth]
        at = (scores.argmax(1) != truth).nonzero()[0]
        self.rows += count
        self.wrong += len(at)
        if len(at) and classes > 2 and np.isfinite(own).all():
            place = np.maximum((scores[at] > own[at, None]).sum(1) - 1, 0) / (classes - 2)
            self.rank += float(place.sum())
            self.low += float((place > 0.5).sum() + (place == 0.5).sum() / 2)

    def take(self) -> dict[str, float]:
        """The same numbers as of a tracked step, of all that was seen since the last record."""
        if not self.rows:
            return {}
        numbers = {"between_rows": self.rows, "between_accuracy": 1 - self.wrong / self.rows}
        if self.wrong and self.rank:
            numbers |= {"between_rank": self.rank / self.wrong, "between_low": self.low / self.wrong}
        self.forget()
        return numbers


def as_array(scores: Tensor) -> np.ndarray:
    """numpy knows no bfloat16, and is slow with half precision."""
    return (scores if scores.dtype.itemsize > 2 else scores.float()).numpy()

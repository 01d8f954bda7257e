"""How often the network is right at steps between two records: a few rows of a few steps say little, and labels that are
wrong show in the rows of many."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor, nn

from cockpit_core.signals.graph_losses import read_graph_loss
from cockpit_core.signals.outputs import label_rows

EVERY, SELDOM, SMALL = 5, 20, 50_000
"""Of so many losses one is looked at; the second number where a network has fewer parameters than the third: a look takes a
tenth of a millisecond at worst, which is much beside a step of such a network."""
MOST_SCORES, ENOUGH = 8192, 1024  # scores of a loss that are looked at; rows until the next record
FRUITLESS = 3  # looks without any classes, after which there are none
CLASSES = (nn.CrossEntropyLoss, nn.NLLLoss)


class Between:
    """Kept until the next record counts it, so that a step without a record pays for a copy only. Only what lies on the CPU:
    nobody waits for a device."""

    def __init__(self, size: int) -> None:
        """``size``: parameters of the network."""
        self.every = EVERY if size >= SMALL else SELDOM
        self.count = self.fruitless = 0
        self.forget()

    def forget(self) -> None:
        self.rows = 0
        self.kept: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}  # by the number of classes

    def is_due(self) -> bool:
        self.count += 1
        return self.count % self.every == 0 and self.rows < ENOUGH and self.fruitless < FRUITLESS

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
        here = z.is_cpu and labels.is_cpu and not labels.is_floating_point()
        rows = (
            label_rows(z.detach(), labels.detach(), max(32, MOST_SCORES // z.shape[1]))
            if here and z.dim() > 1
            else None
        )
        if rows is None:
            self.fruitless += 1
            return
        scores, truth = as_array(rows[0]).copy(), rows[1].numpy()
        truth = np.where(truth == ignored, -1, truth)
        self.rows += len(truth)
        self.kept.setdefault(scores.shape[1], []).append((scores, truth))

    def take(self) -> dict[str, float]:
        """The same numbers as of a tracked step, of all that was seen since the last record. Of scores that are equal to the
        label's none counts as above it."""
        if not self.kept:
            return {}
        rows = wrong = rank = low = 0.0
        for classes, parts in self.kept.items():
            scores, truth = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
            inside = (truth >= 0) & (truth < classes) & np.isfinite(scores).all(1)
            scores, truth = scores[inside], truth[inside]
            at = (scores.argmax(1) != truth).nonzero()[0]
            rows, wrong = rows + len(truth), wrong + len(at)
            if len(at) and classes > 2:
                own = scores[at, truth[at]]
                place = np.maximum((scores[at] > own[:, None]).sum(1) - 1, 0) / (classes - 2)
                rank += float(place.sum())
                low += float((place > 0.5).sum() + (place == 0.5).sum() / 2)
        self.forget()
        if not rows:
            return {}
        numbers = {"between_rows": rows, "between_accuracy": 1 - wrong / rows}
        return numbers | ({"between_rank": rank / wrong, "between_low": low / wrong} if rank else {})


def as_array(scores: Tensor) -> np.ndarray:
    """numpy knows no bfloat16, and is slow with half precision."""
    return (scores if scores.dtype.itemsize > 2 else scores.float()).numpy()

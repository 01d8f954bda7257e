from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from cockpit_core.quantities.base import NoValue, Quantity, Statistics, Value

LARGEST = 5
UNKNOWN = -1.0
COLUMNS = ("id", "norm", "agreement", "times", "label", "step")


@dataclass(slots=True)
class Seen:
    """What is known about one sample: sums over the tracked steps that had it in their batch."""

    norm: float = 0.0
    agreement: float = 0.0
    times: int = 0
    label: float = UNKNOWN
    step: int = 0


class HardSamples(Quantity):
    """Which samples own the gradient? Share of the five largest in ``sum_n ||g_n||^2`` of the batch.

    With ``run.batch(ids=...)`` before each forward pass, samples are followed over the run: at each tracked step the table
    (``run.data.histogram("HardSamples").counts``, rows of id, mean ``||g_n||``, mean ``cos(g_n, g)``, times seen, label
    or -1, last step) has the ``top`` samples with the largest mean norm so far. Large norms that stay are hard, rare or
    wrongly labelled samples (GraNd: Paul et al. 2021, arXiv 2107.07075); with an agreement below 0, the rest of the batch
    pulls the other way. At most ``capacity`` samples are remembered; beyond that the easier half is forgotten. Norms
    fall in
    training, so samples seen early look harder than those seen late; after a few epochs that evens out.
    """

    needs = ("norms", "dots", "ids")
    description = "Share of the five largest individual gradients in the squared norms of the batch."
    question = "which samples own the gradient?"
    formula = "share of the five largest in `sum ||g_n||^2`; a table by id"
    cost = "nothing"

    def __init__(self, *, top: int = 50, capacity: int = 20_000, schedule=None):
        super().__init__(schedule=schedule)
        if not (isinstance(top, int) and isinstance(capacity, int) and 0 < top <= capacity // 2):
            raise ValueError(f"top and capacity are whole numbers, 0 < top <= capacity / 2; got {top!r}, {capacity!r}")
        self.top, self.capacity = top, capacity
        self._seen: dict[int, Seen] = {}
        self._step = -1

    def measure(self, statistics: Statistics) -> Value:
        names = [n for n in statistics.norms if n in statistics.dots]
        if not names:
            raise NoValue(statistics.reason("individual", "no layer has individual gradients"))
        squares = torch.stack([statistics.norms[n].double() for n in names]).sum(0).clamp(min=0).cpu()
        if not bool(torch.isfinite(squares).all()):
            raise NoValue("a gradient is not finite")
        if float(squares.sum()) == 0:
            raise NoValue("the gradient is zero")
        share = float(torch.topk(squares, min(LARGEST, len(squares))).values.sum() / squares.sum())
        ids = statistics.ids
        if ids is None:
            return Value(share)
        if len(ids) != len(squares):
            return Value(share, parts={"table": Value(reason=f"{len(ids)} ids for a batch of {len(squares)} samples")})
        length = math.sqrt(sum(statistics.gradient_norms[n] ** 2 for n in names))
        dots = torch.stack([statistics.dots[n].double() for n in names]).sum(0).cpu()
        self.remember(statistics, ids, squares.sqrt().numpy(), dots.numpy(), length)
        return Value(share, table=self.hardest())

    def remember(
        self, statistics: Statistics, ids: np.ndarray, norms: np.ndarray, dots: np.ndarray, length: float
    ) -> None:
        if statistics.step <= self._step:  # another run, or one that was resumed from an earlier step
            self._seen.clear()
        self._step = statistics.step
        labels = statistics.labels.tolist() if statistics.labels is not None else []
        for n, key in enumerate(ids.tolist()):
            seen = self._seen.setdefault(key, Seen())
            seen.norm += float(norms[n])
            seen.agreement += float(dots[n] / (norms[n] * length)) if norms[n] * length > 0 else 0.0
            seen.times, seen.step = seen.times + 1, statistics.step
            seen.label = float(labels[n]) if len(labels) == len(ids) else UNKNOWN
        if len(self._seen) > self.capacity:
            kept = sorted(self._seen.items(), key=lambda item: -item[1].norm / item[1].times)[: self.capacity // 2]
            self._seen = dict(kept)

    def hardest(self) -> np.ndarray:
        """[top, 6], the largest mean norm first; columns as in ``COLUMNS``."""
        chosen = sorted(self._seen.items(), key=lambda item: -item[1].norm / item[1].times)[: self.top]
        rows = [(k, s.norm / s.times, s.agreement / s.times, s.times, s.label, s.step) for k, s in chosen]
        return np.array(rows, dtype=np.float64).reshape(-1, len(COLUMNS))

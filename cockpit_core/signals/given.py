"""Is the class written into the inputs?"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from cockpit_core.signals.reading import Steps, signal

MOST = 65536  # numbers that are looked at
FEWEST = 16  # samples
MOST_CLASSES = 256


@signal
def measure_given(x: Tensor, y: Tensor, name: str = "label_given") -> Steps[dict[str, float]]:
    """``label_given`` (``code_given`` of codes): the share of classes that can be told by features which have one and the same
    value for all samples of a class (a label that was left in a column or in a pixel, as a number or by one-hot).
    ``..._where``: the first of these features. Classes with one sample in the batch count for nothing. Nothing is told where
    other features would tell but for a single sample: those of few values (a black and white picture) tell the classes of a
    batch by accident."""
    if y.dim() != 1 or y.is_floating_point() or not x.is_floating_point() or x.dim() < 2 or len(x) != len(y):
        return {}
    features = max(1, x[0].numel())
    samples = min(len(x), MOST // features)
    if samples < FEWEST or features < 2:
        return {}
    rows, labels = yield [as_known(x[:samples].reshape(samples, -1)), y[:samples]]
    order = np.argsort(labels, kind="stable")
    labels = labels[order]
    starts = np.flatnonzero(np.r_[True, labels[1:] != labels[:-1]])
    again = np.diff(np.r_[starts, samples]) > 1
    if not 2 <= again.sum() <= MOST_CLASSES:
        return {}
    # Two samples of each class leave few features, as a rule none, for which it is worth looking at all samples.
    ones, others = rows[order[starts[again]]], rows[order[starts[again] + 1]]
    left = np.flatnonzero((ones == others).all(0) & (ones != ones[0]).any(0))  # NaN is like nothing
    if not left.size:
        return {name: 0.0}
    rows = rows[order]
    lows, highs = (side.reduceat(rows[:, left], starts)[again] for side in (np.minimum, np.maximum))
    alike = (lows == highs).all(0) & (lows != lows[0]).any(0)
    lows, telling = lows[:, alike], left[alike]
    if not telling.size:
        return {name: 0.0}
    if nearly_tells(rows, np.append(starts, samples)):
        return {}
    told = len(np.unique(lows, axis=0)) / int(again.sum())
    return {name: told, f"{name}_where": float(telling[0])}


def as_known(x: Tensor) -> Tensor:
    """In a type that numpy has."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def nearly_tells(rows: np.ndarray, ends: np.ndarray) -> bool:
    """Has any feature one value for each class, with one sample as the only exception?"""
    odd, usual = np.zeros(rows.shape[1], int), []
    for start, stop in pairwise(ends):
        if stop - start > 1:
            own = np.sort(rows[start:stop], 0)
            usual.append(own[(stop - start - 1) // 2])
            odd += (own != usual[-1]).sum(0)
    return bool(((odd == 1) & (np.array(usual) != usual[0]).any(0)).any())

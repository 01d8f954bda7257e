"""Is the class written into the inputs?"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from cockpit_core.signals.reading import Steps, signal

MOST = 65536  # numbers that are looked at
FEWEST = 16  # samples
MOST_CLASSES = 256


@signal
def measure_given(x: Tensor, y: Tensor) -> Steps[dict[str, float]]:
    """``label_given``: the share of classes that can be told by features which have one and the same value for all samples of a
    class (a label that was left in a column or in a pixel, as a number or by one-hot). ``label_given_where``: the first of
    these features. Classes with one sample in the batch count for nothing."""
    if y.dim() != 1 or y.is_floating_point() or not x.is_floating_point() or x.dim() < 2 or len(x) != len(y):
        return {}
    features = max(1, x[0].numel())
    samples = min(len(x), MOST // features)
    if samples < FEWEST or features < 2:
        return {}
    rows, labels = yield [x[:samples].reshape(samples, -1).double(), y[:samples]]  # numpy has no bfloat16
    order = np.argsort(labels, kind="stable")
    rows, labels = rows[order], labels[order]
    starts = np.flatnonzero(np.r_[True, labels[1:] != labels[:-1]])
    again = np.diff(np.r_[starts, samples]) > 1
    if not 2 <= again.sum() <= MOST_CLASSES:
        return {}
    lows, highs = np.minimum.reduceat(rows, starts)[again], np.maximum.reduceat(rows, starts)[again]
    telling = np.flatnonzero((lows == highs).all(0) & (lows != lows[0]).any(0))  # NaN is like nothing
    if not telling.size:
        return {"label_given": 0.0}
    told = len(np.unique(lows[:, telling], axis=0)) / int(again.sum())
    return {"label_given": told, "label_given_where": float(telling[0])}

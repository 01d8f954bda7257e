"""Signal and noise of a batch gradient without bias, and their averages over the tracked steps.

With ``m = (1/B) sum_n ||g_n||^2``, from one batch (McCandlish et al. 2018, arXiv 1812.06162, appendix A, for a batch
and its single samples):

- signal ``||G||^2 = (B ||g||^2 - m) / (B - 1)``, G the gradient of the whole distribution; it may come out negative;
- noise ``tr(Sigma) = (m - ||g||^2) B / (B - 1)``, Sigma the covariance of individual gradients.

How far an average may be off follows from leaving out one sample at a time (jackknife). That needs no gradient again:
``||g without n||^2 = (B^2 ||g||^2 - 2 B g_n.g + ||g_n||^2) / (B - 1)^2``.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cockpit_core.quantities.base import NoValue, Statistics

SIGNAL, NOISE, SQUARED, SIGNAL_VAR, NOISE_VAR, SHARED_VAR, SQUARED_VAR, SIGNAL_SQUARED_VAR = range(8)


class Ratio(NamedTuple):
    """A ratio of two averages, with its standard error (NaN where the batch is too small to tell)."""

    value: float
    error: float


@dataclass(frozen=True)
class Averages:
    """One row per layer and, first of all, one for the network; columns as named above. Variances are of the means."""

    names: tuple[str, ...]
    rows: np.ndarray  # [1 + layers, 8]
    steps: int

    def noise_over_signal(self, row: int = 0) -> Ratio:
        return ratio(self.rows[row], NOISE, SIGNAL, NOISE_VAR, SIGNAL_VAR, SHARED_VAR)

    def signal_over_squared(self, row: int = 0) -> Ratio:
        return ratio(self.rows[row], SIGNAL, SQUARED, SIGNAL_VAR, SQUARED_VAR, SIGNAL_SQUARED_VAR)


def ratio(row: np.ndarray, above: int, below: int, above_var: int, below_var: int, shared: int) -> Ratio:
    """``a / b`` and its error to first order: ``var(a) - 2 r cov(a, b) + r^2 var(b)``, over ``b^2``."""
    value = float(row[above] / row[below])
    variance = float(row[above_var] - 2 * value * row[shared] + value**2 * row[below_var])
    return Ratio(value, math.sqrt(max(variance, 0.0)) / abs(float(row[below])) if variance == variance else math.nan)


class Window:
    """The last tracked steps of one run. A step that comes again (a resumed run, another run) takes its place."""

    def __init__(self, size: int):
        self.size = size
        self.seen: deque[tuple[int, tuple[str, ...], np.ndarray]] = deque(maxlen=size)

    def add(self, statistics: Statistics) -> Averages:
        names, rows = estimate(statistics)
        while self.seen and self.seen[-1][0] >= statistics.step:
            self.seen.pop()
        self.seen.append((statistics.step, names, rows))
        same = [own for _, known, own in self.seen if known == names]  # others: layers that were not covered
        mean = np.mean(same, axis=0)
        mean[:, SIGNAL_VAR:] /= len(same)  # batches are independent
        return Averages(names, mean, len(same))


def estimate(statistics: Statistics) -> tuple[tuple[str, ...], np.ndarray]:
    """Names of the layers, and the rows of one batch [1 + layers, 8]."""
    names, B = tuple(sorted(n for n in statistics.norms if n in statistics.dots)), statistics.batch_size
    if not names:
        raise NoValue(statistics.reason("individual", "no layer has individual gradients"))
    if B < 2:
        raise NoValue("a batch of one sample has no variance")
    norms, dots = stack(statistics.norms, names), stack(statistics.dots, names)  # [1 + layers, B]
    layers = np.array([statistics.gradient_norms[name] ** 2 for name in names])
    squared = np.concatenate([[layers.sum()], layers])
    rows = np.full((len(squared), 8), math.nan)
    rows[:, SIGNAL], rows[:, NOISE] = without_bias(norms.mean(1), squared, B)
    rows[:, SQUARED] = squared
    if not np.isfinite(rows[:, :3]).all():
        raise NoValue("the gradient is not finite")
    if B > 2:
        rows[:, SIGNAL_VAR:] = variances(norms, dots, squared, B)
    return names, rows


def stack(vectors: Mapping[str, Tensor], names: tuple[str, ...]) -> np.ndarray:
    rows = torch.stack([vectors[name].double() for name in names]).cpu().numpy()
    return np.concatenate([rows.sum(0, keepdims=True), rows])


def without_bias(mean: np.ndarray, squared: np.ndarray, B: int) -> tuple[np.ndarray, np.ndarray]:
    return (B * squared - mean) / (B - 1), (mean - squared) * B / (B - 1)


def variances(norms: np.ndarray, dots: np.ndarray, squared: np.ndarray, B: int) -> np.ndarray:
    """Jackknife variances of signal and noise with their covariance, and of ``||g||^2`` with its covariance with the
    signal."""
    mean = (norms.sum(1, keepdims=True) - norms) / (B - 1)
    rest = (B**2 * squared[:, None] - 2 * B * dots + norms) / (B - 1) ** 2
    signal, noise = without_bias(mean, rest, B - 1)

    def shared(one: np.ndarray, other: np.ndarray) -> np.ndarray:
        one, other = one - one.mean(1, keepdims=True), other - other.mean(1, keepdims=True)
        return (B - 1) / B * (one * other).sum(1)

    pairs = (signal, signal), (noise, noise), (signal, noise), (rest, rest), (signal, rest)
    return np.stack([shared(*pair) for pair in pairs], 1)

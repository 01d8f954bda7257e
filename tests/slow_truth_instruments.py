"""What the newer instruments should be: from whole matrices of individual gradients, one thing after the other, slow.

As in ``slow_truth``: ``G`` is [B, D], of the whole network or of one parameter tensor; ``None`` means "has no value".
"""

from __future__ import annotations

import numpy as np

Array = np.ndarray


# ---- signal and noise ----------------------------------------------------------------------------------------------


def covariance_trace(G: Array) -> float:
    """Unbiased: divisor B - 1, element by element."""
    return float(G.var(0, ddof=1).sum())


def signal(G: Array) -> float:
    """``||G||^2`` without bias: the mean product of two different samples' gradients."""
    K = G @ G.T
    B = len(G)
    return float((K.sum() - np.trace(K)) / (B * (B - 1)))


def signal_share(batches: list[Array]) -> float:
    squared = [float(G.mean(0) @ G.mean(0)) for G in batches]
    return float(np.mean([signal(G) for G in batches]) / np.mean(squared))


def noise_scale(batches: list[Array]) -> float | None:
    below = np.mean([signal(G) for G in batches])
    return float(np.mean([covariance_trace(G) for G in batches]) / below) if below > 0 else None


def jackknife(batches: list[Array], above, below) -> float:
    """Standard error of mean(above) / mean(below): each batch's covariance by leaving out one sample at a time."""
    B, n = len(batches[0]), len(batches)
    r = np.mean([above(G) for G in batches]) / np.mean([below(G) for G in batches])
    total = 0.0
    for G in batches:
        rest = [np.delete(G, i, 0) for i in range(B)]
        values = np.array([above(part) - r * below(part) for part in rest])
        total += (B - 1) / B * ((values - values.mean()) ** 2).sum()
    return float(np.sqrt(total) / n / abs(np.mean([below(G) for G in batches])))

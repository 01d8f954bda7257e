"""Means of random draws with a standard error that is true after a few draws.

A draw gives one number per sample, and those of different samples are uncorrelated. So the variance of their sum is the sum of
their variances, each from the draws of one sample: with B samples and k draws that is B (k - 1) degrees of freedom where the
spread of the k sums alone has k - 1. Where few samples carry the sum there are fewer (Welch and Satterthwaite), and
the error is widened so that the truth still lies within two of it in 95 of 100 cases, as with a normal distribution.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


class Draws:
    """Draws [P, B] of P parameters."""

    def __init__(self) -> None:
        self._drawn: list[Tensor] = []

    def __len__(self) -> int:
        return len(self._drawn)

    def add(self, draw: Tensor) -> None:
        self._drawn.append(draw.detach().double())

    def sum_up(self) -> tuple[float, float]:
        """The sum of all means, and its standard error."""
        if not self._drawn or not self._drawn[0].numel():
            return 0.0, 0.0
        drawn = torch.stack([draw.sum(0) for draw in self._drawn]).cpu()  # [k, B]
        return float(drawn.mean(0).sum()), _standard_error(drawn)

    def finish(self) -> tuple[list[float], list[float], float]:
        """Means and standard errors of the parameters, and the standard error of their sum."""
        if not self._drawn or not self._drawn[0].numel():
            return [], [], 0.0
        drawn = torch.stack(self._drawn).cpu()  # [k, P, B]
        whole = _standard_error(drawn.sum(1))
        return drawn.mean(0).sum(1).tolist(), [_standard_error(one) for one in drawn.unbind(1)], whole


def _standard_error(drawn: Tensor) -> float:
    """The variance of ``drawn.mean(0).sum()``. drawn: [k, B]."""
    k = len(drawn)
    if k < 2:
        return math.inf
    variances = drawn.var(0)  # [B]
    total = float(variances.sum())
    if total <= 0 or not math.isfinite(total):
        return 0.0 if total == 0 else math.nan
    freedom = (k - 1) * total**2 / float(variances.square().sum())
    return widening(freedom) * math.sqrt(total / k)


def widening(freedom: float) -> float:
    """The quantile of Student's t that belongs to two standard deviations, over two (Cornish and Fisher)."""
    z = 2.0
    first, second = (z**2 + 1) / (4 * freedom), (5 * z**4 + 16 * z**2 + 3) / (96 * freedom**2)
    third = (3 * z**6 + 19 * z**4 + 17 * z**2 - 15) / (384 * freedom**3)
    return 1 + first + second + third


class Elements:
    """Draws per element ``v_j (A v)_j`` for random signs v, where samples cannot be told apart.

    The variance of their sum is at most twice the sum of theirs (see ``trace.py``), which is steady after a few draws.
    """

    def __init__(self) -> None:
        self.count = 0
        self._mean: dict[str, Tensor] = {}
        self._spread: dict[str, Tensor] = {}

    def add(self, draw: dict[str, Tensor]) -> None:
        self.count += 1
        for name, values in draw.items():
            values = values.double()
            if name not in self._mean:
                self._mean[name], self._spread[name] = values.clone(), torch.zeros_like(values)
                continue
            delta = values - self._mean[name]
            self._mean[name] += delta / self.count
            self._spread[name] += delta * (values - self._mean[name])

    def finish(self) -> tuple[dict[str, float], dict[str, float]]:
        """Traces and their standard errors."""
        traces = {name: float(mean.sum()) for name, mean in self._mean.items()}
        if self.count < 2:
            return traces, dict.fromkeys(traces, math.inf)
        share = 2 / ((self.count - 1) * self.count)
        return traces, {name: _error_of_sum(spread, share, self.count) for name, spread in self._spread.items()}


def _error_of_sum(spread: Tensor, share: float, count: int) -> float:
    """Elements depend on each other, so they count as half the degrees of freedom."""
    total = float(spread.sum())
    if total <= 0:
        return 0.0
    freedom = (count - 1) / 2 * total**2 / float(spread.square().sum())
    return widening(max(freedom, 1.0)) * math.sqrt(share * total)

"""Where on the valley does a step land?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cockpit_core.foundation.records import AlphaFit
from cockpit_core.quantities.base import Quantity

Coefficients = tuple[float, float, float]
NONE: Coefficients = (math.nan, math.nan, math.nan)
LOPSIDED = 1e10
"""Weights that differ by less are far from where rounding hides one beside another."""


class Alpha(Quantity):
    """Does the step stop short of the valley floor, or run up the opposite wall?

    A parabola ``f(tau) = w0 + w1 tau + w2 tau^2`` is fitted to the losses and slopes at both ends of the step, each
    weighted with its noise; ``alpha = 2 T w2 / (-w1) - 1``: -1 stands still, 0 is the floor, +1 the opposite wall, and
    -1 too where the parabola still falls (w2 < 0). The two ends see different batches: single values are noisy, their
    distribution is not. Needs the next step's batch, so it is known one step later.
    """

    needs = ("alpha",)
    configurations = ("economy", "business", "full")
    kind = "alpha"
    description = "Where the step lands: -1 stands still, 0 valley floor, +1 the opposite wall."
    formula = "where the step lands on a fitted parabola: -1 stands still, 0 valley floor, +1 opposite wall"


@dataclass(frozen=True)
class End:
    """The mini-batch at one end of the step: loss and slope along it, with the variances of the individual values."""

    loss: float
    slope: float
    loss_var: float
    slope_var: float


def fit_alpha(step: int, T: float, start: End, end: End) -> AlphaFit:
    """Weighted least squares of four observations on three coefficients, and alpha from it."""
    variances = [
        v if v > 0 else 1e-10 if v == 0 else math.nan
        for v in (start.loss_var, end.loss_var, start.slope_var, end.slope_var)
    ]
    w = solve(T, [start.loss, end.loss, start.slope, end.slope], variances)
    return AlphaFit(
        step=step, alpha=alpha_of(T, w), length=T,
        loss_start=start.loss, loss_end=end.loss, slope_start=start.slope, slope_end=end.slope,
        loss_var_start=start.loss_var, loss_var_end=end.loss_var,
        slope_var_start=start.slope_var, slope_var_end=end.slope_var,
        w0=w[0], w1=w[1], w2=w[2],
    )  # fmt: skip


def solve(T: float, y: Sequence[float], variances: Sequence[float]) -> Coefficients:
    """``w = (Phi Lambda^-1 Phi^T)^-1 Phi Lambda^-1 y``.

    Four observations of three coefficients contradict each other in one way: on a parabola the loss rises by T times the
    mean of both slopes. Each observation gives way by its part of the variance of that sum, and the parabola goes through
    what they are then.
    """
    if not T > 0 or not (all(map(math.isfinite, y)) and all(map(math.isfinite, variances))):
        return NONE
    if max(variances) * max(T, 1 / T) ** 2 > LOPSIDED**2 * min(variances):
        return solve_lopsided(T, y, variances)
    (f0, f1, d0, d1), (v0, v1, u0, u1), half = y, variances, T / 2
    excess = (f1 - f0) - half * (d0 + d1)
    give = excess / (v0 + v1 + half * half * (u0 + u1))
    d0, d1 = d0 + half * u0 * give, d1 + half * u1 * give
    return f0 + v0 * give, d0, (d1 - d0) / (2 * T)


def solve_lopsided(T: float, y: Sequence[float], variances: Sequence[float]) -> Coefficients:
    """The same where an observation may weigh so much less than another that it is lost in rounding: then there is no
    fit. With ``tau`` in units of T, where the system is well scaled."""
    rows = np.array([[1, 0, 0], [1, 1, 1], [0, 1 / T, 0], [0, 1 / T, 2 / T]])  # Phi^T diag(1/units)
    weights = 1 / np.sqrt(np.array(variances))
    u, rank = np.linalg.lstsq(rows * weights[:, None], np.array(y) * weights, rcond=None)[::2]
    return (float(u[0]), float(u[1]) / T, float(u[2]) / (T * T)) if rank == 3 else NONE


def alpha_of(T: float, w: Coefficients) -> float | None:
    if T == 0:
        return -1.0
    if not all(map(math.isfinite, w)):
        return None
    if w[2] < 0:
        return -1.0
    return 2 * T * w[2] / -w[1] - 1 if w[1] != 0 else None

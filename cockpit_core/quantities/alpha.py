"""Where on the valley does a step land?"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from cockpit_core.foundation.records import AlphaFit
from cockpit_core.quantities.base import Quantity


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
    w = solve(T, np.array([start.loss, end.loss, start.slope, end.slope]), np.array(variances))
    return AlphaFit(
        step=step, alpha=alpha_of(T, w), length=T,
        loss_start=start.loss, loss_end=end.loss, slope_start=start.slope, slope_end=end.slope,
        loss_var_start=start.loss_var, loss_var_end=end.loss_var,
        slope_var_start=start.slope_var, slope_var_end=end.slope_var,
        w0=float(w[0]), w1=float(w[1]), w2=float(w[2]),
    )  # fmt: skip


def solve(T: float, y: np.ndarray, variances: np.ndarray) -> np.ndarray:
    """``w = (Phi Lambda^-1 Phi^T)^-1 Phi Lambda^-1 y`` with ``tau`` in units of T, where the system is well scaled."""
    if not T > 0 or not (np.isfinite(y).all() and np.isfinite(variances).all()):
        return np.full(3, math.nan)
    units = np.array([1.0, T, T * T])
    rows = np.array([[1, 0, 0], [1, 1, 1], [0, 1 / T, 0], [0, 1 / T, 2 / T]])  # Phi^T diag(1/units)
    weights = 1 / np.sqrt(variances)
    u, rank = np.linalg.lstsq(rows * weights[:, None], y * weights, rcond=None)[::2]
    return u / units if rank == 3 else np.full(3, math.nan)


def alpha_of(T: float, w: np.ndarray) -> float | None:
    if T == 0:
        return -1.0
    if not np.isfinite(w).all():
        return None
    if w[2] < 0:
        return -1.0
    return float(2 * T * w[2] / -w[1] - 1) if w[1] != 0 else None

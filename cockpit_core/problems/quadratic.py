"""A noisy quadratic with the spectrum of a deep network: a few large eigenvalues, many small ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn

from cockpit_core.problems.base import Data, Problem, Split

DIMENSION = 100


def quadratic_deep() -> Problem:
    return Problem(
        name="quadratic_deep",
        description="A quadratic in 100 dimensions with 90 eigenvalues in (0, 1) and 10 in (30, 60); needs no data.",
        make_model=make_quadratic,
        make_loss=nn.MSELoss,
        make_data=make_points,
        parameters=DIMENSION,
        batch_size=128,
        epochs=100,
        metric="loss",
    )


def make_quadratic() -> nn.Module:
    """``L = mean_n (theta - x_n)' Q (theta - x_n) / 100``, as two linear maps before a mean squared error.

    The first computes ``theta - x`` (theta is its bias, which starts at ones), the second multiplies with the transposed
    Cholesky factor of Q. The division by 100 is that of ``MSELoss``, which averages over outputs too.
    """
    shift, factor = nn.Linear(DIMENSION, DIMENSION), nn.Linear(DIMENSION, DIMENSION, bias=False)
    root = np.linalg.cholesky(make_matrix(np.random.RandomState(42)))
    with torch.no_grad():
        shift.weight.copy_(-torch.eye(DIMENSION))
        shift.bias.fill_(1.0)
        factor.weight.copy_(torch.from_numpy(root.T.copy()))
    for layer in (shift, factor):
        layer.weight.requires_grad_(False)
    return nn.Sequential(shift, factor)


def make_matrix(random: np.random.RandomState) -> np.ndarray:
    """A symmetric matrix with the given eigenvalues in a random frame. [100, 100]"""
    eigenvalues = np.concatenate((random.uniform(0, 1, 90), random.uniform(30, 60, 10)))
    # A Gaussian matrix has no preferred direction. Neither has its Q factor, once the signs of R are moved into it.
    frame, upper = np.linalg.qr(random.normal(size=(DIMENSION, DIMENSION)))
    frame = frame * np.sign(np.diag(upper))
    return (frame * eigenvalues) @ frame.T


def make_points(folder: Path | None) -> Data:
    """Three times 1,000 points from ``N(0, 0.6^2)``; targets are zeros."""

    def draw(seed: int) -> Split:
        points = np.random.RandomState(seed).normal(0, 0.6, (1000, DIMENSION))
        inputs = torch.tensor(points, dtype=torch.float32)
        return Split(inputs, torch.zeros_like(inputs))

    return Data(draw(42), draw(44), draw(43))

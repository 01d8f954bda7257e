"""The parabola through both ends of a step, against exact fractions."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import pytest

from cockpit_core.quantities.alpha import NONE, alpha_of, solve, solve_lopsided


def solve_exactly(T: float, y: list[float], variances: list[float]) -> list[float]:
    """``(Phi Lambda^-1 Phi^T)^-1 Phi Lambda^-1 y`` in fractions."""
    t, values, weights = Fraction(T), [Fraction(x) for x in y], [1 / Fraction(v) for v in variances]
    rows = [[Fraction(1), 0, 0], [1, t, t * t], [0, 1, 0], [0, 1, 2 * t]]
    A = [[sum(w * r[i] * r[j] for w, r in zip(weights, rows, strict=True)) for j in range(3)] for i in range(3)]
    b = [sum(w * r[i] * x for w, r, x in zip(weights, rows, values, strict=True)) for i in range(3)]
    for i in range(3):
        for k in range(i + 1, 3):
            factor = A[k][i] / A[i][i]
            A[k], b[k] = [p - factor * q for p, q in zip(A[k], A[i], strict=True)], b[k] - factor * b[i]
    w = [Fraction(0)] * 3
    for i in (2, 1, 0):
        w[i] = (b[i] - sum(A[i][j] * w[j] for j in range(i + 1, 3))) / A[i][i]
    return [float(x) for x in w]


def draw(seed: int, spread: float) -> tuple[float, list[float], list[float]]:
    source = random.Random(seed)
    y = [source.gauss(2, 1), source.gauss(2, 1), source.gauss(0, 3), source.gauss(0, 3)]
    return 10 ** source.uniform(-4, 1), y, [10 ** source.uniform(-spread, spread) for _ in range(4)]


@pytest.mark.parametrize("way", [solve, solve_lopsided])
def test_the_fit_is_that_of_weighted_least_squares(way) -> None:
    for seed in range(200):
        T, y, variances = draw(seed, 4)
        slope = max(abs(y[2]), abs(y[3]), abs(y[1] - y[0]) / T)
        sizes = max(abs(y[0]), abs(y[1])), slope, slope / T
        pairs = zip(way(T, y, variances), solve_exactly(T, y, variances), sizes, strict=True)
        limit = 1e-13 if way is solve else 1e-9
        assert all(abs(own - truth) <= limit * size for own, truth, size in pairs), seed


def test_an_observation_that_is_lost_in_rounding_gives_no_fit() -> None:
    """As before there was a formula: beside weights of 1e20 the others say nothing."""
    T, y = 0.1, [1.0, 2.0, 0.5, 0.25]
    assert all(math.isnan(w) for w in solve(T, y, [1e-30, 1e12, 1e12, 1e12]))
    assert all(math.isfinite(w) for w in solve(T, y, [1e-10, 1.0, 1e-10, 1.0]))


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_what_is_not_finite_has_no_fit(broken: float) -> None:
    assert solve(0.1, [broken, 1.0, 1.0, 1.0], [1.0] * 4) is NONE
    assert solve(0.1, [1.0] * 4, [1.0, broken, 1.0, 1.0]) is NONE
    assert solve(0.0, [1.0] * 4, [1.0] * 4) is NONE and solve(broken, [1.0] * 4, [1.0] * 4)[0] != 0
    assert alpha_of(0.1, NONE) is None and alpha_of(0.0, NONE) == -1.0

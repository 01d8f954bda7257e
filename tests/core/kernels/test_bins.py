"""The rounding rule itself, one value at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cockpit_core.kernels import Bins, Spec

GRADIENT = Bins(-2, 2, 100)


def test_edges_are_numpy_s_and_zero_is_exact() -> None:
    np.testing.assert_array_equal(GRADIENT.edges, np.linspace(-2, 2, 101))
    assert 0.0 in Bins(-0.3, 0.3, 100).edges


@pytest.mark.parametrize(
    ("low", "high", "count"),
    [(1, 1, 3), (2, 1, 3), (float("nan"), 1, 3), (0, float("inf"), 3), (0, 1, 0), (0, 1, -2), (0, 1, 10**6)],
)
def test_impossible_bins_are_refused(low: float, high: float, count: int) -> None:
    with pytest.raises(ValueError, match="bins"):
        Bins(low, high, count)


@pytest.mark.parametrize(("low", "high"), [(1.0, 1.0 + 1e-7), (0.0, 1e-40), (-1e38, 1e38)])
def test_bins_that_float32_cannot_tell_apart_are_refused(low: float, high: float) -> None:
    with pytest.raises(ValueError, match="float32"):
        Bins(low, high, 10)


@pytest.mark.parametrize("count", [2.5, "3", True])
def test_a_number_of_bins_that_is_no_integer_is_refused(count: object) -> None:
    with pytest.raises(TypeError, match="integer"):
        Bins(0, 1, count)  # type: ignore[arg-type]


def test_the_joint_bins_must_be_a_pair() -> None:
    with pytest.raises(ValueError, match="pair"):
        Spec(None, (GRADIENT,))  # type: ignore[arg-type]


@pytest.mark.parametrize("double", [False, True])
def test_each_kind_of_value_has_its_category(double: bool) -> None:
    expected = {-2.5: 0, -2.0: 1, -1.0: 26, 0.0: 51, 1.99: 100, 2.0: 100, 2.5: 101}
    expected |= {math.inf: 103, -math.inf: 104}
    assert {value: GRADIENT.category(value, double) for value in expected} == expected
    assert GRADIENT.category(math.nan, double) == 102
    assert GRADIENT.category(-0.0, double) == 51


@pytest.mark.parametrize("tiny", [1e-3, 1e-10, 1e-30, 1e-44])
def test_the_smallest_gradient_falls_on_its_own_side_of_zero(tiny: float) -> None:
    assert GRADIENT.category(-tiny, double=False) == 50
    assert GRADIENT.category(tiny, double=False) == 51


@given(st.floats(-3, 3), st.floats(-3, 3), st.booleans())
def test_the_rule_is_monotone(x: float, y: float, double: bool) -> None:
    for bins in (GRADIENT, Bins(-0.35, 1, 6), Bins(0.1, 1.7, 7)):
        assert bins.category(min(x, y), double) <= bins.category(max(x, y), double)


@given(st.floats(-3, 3, width=32), st.booleans())
def test_the_bin_is_the_one_between_whose_edges_the_value_lies(x: float, double: bool) -> None:
    for bins in (GRADIENT, Bins(-0.35, 1, 6), Bins(0.1, 1.7, 7)):
        edges = np.concatenate([[-np.inf], bins.edges, [np.inf]])
        category = bins.category(x, double)
        slack = (2.0**-48 if double else 2.0**-20) * max(abs(bins.low), abs(bins.high))
        assert edges[category] - slack <= x <= edges[category + 1] + slack

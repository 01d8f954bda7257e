"""Sums over millions of float32 elements against double precision."""

from __future__ import annotations

import pytest
import torch

from cockpit_core.foundation import long_sums
from cockpit_core.quantities.norms import measure_norms

COUNT = 3_000_001


@pytest.fixture(scope="module")
def pair() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    a = torch.randn(COUNT)
    return a, 0.03 * a + torch.randn(COUNT)


def test_norms_are_those_of_double_precision(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    true = float(pair[0].double().norm())
    assert long_sums.norm(pair[0]) == pytest.approx(true, rel=3e-7)
    assert measure_norms({"long": pair[0], "short": pair[0][:5]})["long"] == pytest.approx(true, rel=3e-7)
    squares = long_sums.row_squares(torch.stack(pair))
    assert squares.tolist() == pytest.approx([float(p.double().square().sum()) for p in pair], rel=6e-7)


def test_products_are_those_of_double_precision(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    a, b = pair
    true = float(a.double() @ b.double())
    assert long_sums.dot(a, b) == pytest.approx(true, rel=2e-6)
    rows = long_sums.row_products(torch.stack([a, b]), torch.stack([a, b], 1))
    expected = torch.stack([a, b]).double() @ torch.stack([a, b], 1).double()
    assert rows.flatten().tolist() == pytest.approx(expected.flatten().tolist(), rel=2e-6)


def test_short_and_double_vectors_are_summed_at_once() -> None:
    x = torch.arange(5.0)
    assert long_sums.norm(x) == pytest.approx(30**0.5)
    assert long_sums.norm(torch.ones(COUNT, dtype=torch.float64)) == pytest.approx(COUNT**0.5)

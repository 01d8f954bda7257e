"""Mean, size and spread of short vectors, by the kernel and without it."""

from __future__ import annotations

import math

import pytest
import torch

from cockpit_core.kernels import native
from cockpit_core.kernels.native import describing
from tests.core.kernels.test_native import LEVELS, WIDE


@pytest.mark.parametrize("level", [*LEVELS, ""])
@pytest.mark.parametrize("dtype", [*WIDE, torch.float16], ids=str)
def test_vectors_are_described(level: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(describing, "find_library", lambda: native.open_level(level) if level else None)
    torch.manual_seed(0)
    vectors = [(100 + torch.randn(size)).to(dtype) for size in (1, 2, 129)] + [torch.randn(7, 3).to(dtype)[:, 1]]
    for own, vector in zip(describing.describe(vectors), vectors, strict=True):
        double = vector.double()
        assert own.mean == pytest.approx(float(double.mean()), rel=1e-13)
        assert own.size == pytest.approx(float(double.abs().mean()), rel=1e-13)
        assert own.spread == pytest.approx(float((double - double.mean()).square().sum()), rel=1e-11, abs=1e-30)
    assert describing.describe([]) == []
    assert describing.describe([torch.zeros(0, dtype=dtype)]) == [(0.0, 0.0, 0.0)]


@pytest.mark.parametrize("level", [*LEVELS, ""])
def test_what_is_not_finite_stays_so(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(describing, "find_library", lambda: native.open_level(level) if level else None)
    (own,) = describing.describe([torch.tensor([1.0, math.inf])])
    assert own.mean == own.size == math.inf and math.isnan(own.spread)
    assert all(math.isnan(x) for x in describing.describe([torch.tensor([1.0, math.nan])])[0])

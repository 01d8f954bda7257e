"""Sums of eps over denominators, and products of many small pairs: each against float64, one tensor at a time."""

from __future__ import annotations

import pytest
import torch

from cockpit_core.kernels import native
from cockpit_core.kernels.native import reducing, shares
from tests.core.kernels.test_native import LEVELS, TOLERANCE, WIDE

SIZES = ((1,), (15,), (16, 3), (3000,), (2**16 + 5,), (0,))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("threads", [1, 3])
def test_shares_of_epsilon_are_those_of_each(level: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "find_library", lambda: native.open_level(level))
    monkeypatch.setattr(shares, "LARGEST", 2**12)
    torch.manual_seed(0)
    jobs = [(torch.rand(size, dtype=dtype) ** 4, 0.5 + k, 10.0**-k) for dtype in WIDE for k, size in enumerate(SIZES)]
    jobs += [(torch.zeros(5), 2.0, 1e-8), (torch.ones(5), 2.0, 0.0)]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    found = shares.sum_shares(jobs)
    torch.set_num_threads(before)
    for value, (v, factor, eps) in zip(found, jobs, strict=True):
        truth = (eps / (v.double().sqrt() * factor + eps)).sum() if eps else torch.zeros(())
        assert value == pytest.approx(float(truth), rel=TOLERANCE[v.dtype])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", WIDE, ids=str)
def test_small_pairs_are_multiplied_with_one_call(
    level: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reducing, "find_library", lambda: native.open_level(level))
    torch.manual_seed(0)
    pairs = [(torch.randn(size, dtype=dtype), torch.randn(size, dtype=dtype)) for size in SIZES]
    for value, (x, y) in zip(reducing.multiply_pairs(pairs).tolist(), pairs, strict=True):
        allowed = TOLERANCE[dtype] * float(x.double().norm() * y.double().norm())
        assert value == pytest.approx(float((x.double() * y.double()).sum()), abs=allowed)


def test_what_does_not_fit_is_refused_before_a_kernel_reads_it() -> None:
    for pair in ((torch.ones(3), torch.ones(4)), (torch.ones(3), torch.ones(3).double()), (torch.ones(6)[::2],) * 2):
        with pytest.raises(ValueError, match="alike in size"):
            reducing.multiply_pairs([pair])
    with pytest.raises(ValueError, match="contiguous"):
        shares.sum_shares([(torch.ones(6)[::2], 1.0, 1e-8)])

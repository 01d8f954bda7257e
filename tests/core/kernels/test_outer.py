"""Layers with one position per sample and few outputs, against gradients that are formed in float64."""

from __future__ import annotations

import pytest
import torch

from cockpit_core.kernels import Bins, LogBins, native
from cockpit_core.kernels.native import counting, outer, walking
from cockpit_core.kernels.plain import categorise
from tests.core.kernels.test_native import LEVELS, TOLERANCE, WIDE

SHAPES = ((1, 1, 2), (5, 3, 17), (7, 10, 784), (128, 10, 33), (3, 2, 5000))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", WIDE, ids=str)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("directions", [0, 1, 2])
def test_norms_projections_and_counts_of_products(
    level: str, dtype: torch.dtype, threads: int, directions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (outer, counting, walking):
        monkeypatch.setattr(module, "find_library", lambda: native.open_level(level))
    monkeypatch.setattr(outer, "ALONE", 64)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    for samples, out, inner in SHAPES:
        b, a = torch.randn(samples, out, dtype=dtype), torch.randn(inner, samples, dtype=dtype).T
        along = [torch.randn(out, inner, dtype=dtype) for _ in range(directions)]
        formed = b.double()[:, :, None] * a.double()[:, None, :]
        for bins in (None, Bins(-2.0, 2.0, 100), LogBins()):
            reduced = outer.reduce_outer(b, a, along, bins)
            assert reduced.norms.tolist() == pytest.approx(formed.square().sum((1, 2)).tolist(), rel=1e-12)
            for k, direction in enumerate(along):
                allowed = TOLERANCE[dtype] * formed.flatten(1).norm(dim=1) * direction.double().norm()
                assert ((reduced.dots[:, k] - (formed * direction.double()).sum((1, 2))).abs() <= allowed).all()
            if bins is not None:
                products = (b[:, :, None] * a[:, None, :]).reshape(-1)
                truth = torch.bincount(categorise(products, bins).long(), minlength=len(reduced.counts))
                assert torch.equal(reduced.counts, truth)
    torch.set_num_threads(before)


def test_what_does_not_fit_is_refused_before_a_kernel_reads_it() -> None:
    b, a = torch.ones(4, 2), torch.ones(4, 3)
    wrong = [
        (b, a, [torch.ones(7)]), (b, a.double(), []), (b, a[:3], []), (b[:0], a[:0], []),
        (b, a, [torch.ones(2, 3, dtype=torch.float64)]), (b, a, [torch.ones(2, 3)] * 3),
    ]  # fmt: skip
    for factors in wrong:
        with pytest.raises(ValueError, match="fit each other"):
            outer.reduce_outer(*factors, None)

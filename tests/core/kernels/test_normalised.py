"""Sums of a normalisation over channels, against torch's own normalised input in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cockpit_core.kernels import native
from cockpit_core.kernels.native import normalised, walking

CASES = [
    (4, 6, 3, (5, 7)),
    (3, 8, 8, (40,)),
    (2, 4, 1, (3, 20, 20)),
    (5, 3, 3, ()),
    (1, 2, 2, (33,)),
    (2, 2, 2, (2100,)),
]


@pytest.fixture(params=native.list_levels(), autouse=True)
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (normalised, walking):
        monkeypatch.setattr(module, "find_library", lambda: native.open_level(request.param))


def sum_slowly(x: Tensor, b: Tensor, mean: Tensor, variance: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """One sample and one channel at a time, in float64."""
    products, sums = torch.zeros(2, *x.shape[:2], dtype=torch.float64)
    each = x.shape[1] // mean.shape[1]
    for n in range(len(x)):
        for c in range(x.shape[1]):
            k = n if len(mean) > 1 else 0
            x_hat = (x[n, c].double() - mean[k, c // each]) / (variance[k, c // each] + eps).sqrt()
            products[n, c], sums[n, c] = (x_hat * b[n, c].double()).sum(), b[n, c].double().sum()
    return products, sums


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("offset", [0.0, 100.0])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_sums_are_those_of_the_normalised_input(case: tuple, offset: float, dtype: torch.dtype) -> None:
    samples, channels, groups, space = case
    torch.manual_seed(0)
    x, b = torch.randn(2, samples, channels, *space, dtype=dtype)
    x = 2 * x + offset
    for joined in (False, True):
        grouped = x.double().reshape(samples, groups, -1)
        dims = (0, 2) if joined else (2,)
        truth = grouped.mean(dims).reshape(-1, groups), grouped.var(dims, correction=0).reshape(-1, groups)
        moments = normalised.find_moments(x, groups, joined=joined)
        close = 1e-6 if dtype == torch.float32 else 1e-12
        for found, right in zip(moments, truth, strict=True):
            torch.testing.assert_close(found, right, rtol=close, atol=close * (1 + offset))
        found = normalised.sum_normalised(x, b, *moments, 1e-5)
        for one, other in zip(found, sum_slowly(x, b, *truth, 1e-5), strict=True):
            assert float((one.double() - other).abs().max()) <= 20 * close * (1 + offset) * max(
                1.0, float(other.abs().max())
            )


def test_it_is_torch_s_group_norm() -> None:
    x, b = torch.randn(2, 3, 4, 6, 5, dtype=torch.float64)
    x_hat = F.group_norm(x, 2, None, None, 1e-5)
    products, sums = normalised.sum_normalised(x, b, *normalised.find_moments(x, 2, joined=False), 1e-5)
    torch.testing.assert_close(products, (x_hat * b).sum((2, 3)))
    torch.testing.assert_close(sums, b.sum((2, 3)))


@pytest.mark.parametrize("what", [float("nan"), float("inf"), 0.0, 1e-42])
def test_what_is_not_finite_zero_or_tiny_stays_so(what: float) -> None:
    x, b = torch.randn(2, 2, 4, 50)
    b[0, 1, 7], b[1, 2], x[1, 3, 3] = what, what, what
    products, sums = normalised.sum_normalised(x, b, *normalised.find_moments(x, 2, joined=False), 1e-5)
    x_hat = F.group_norm(x, 2, None, None, 1e-5)
    torch.testing.assert_close(products, (x_hat * b).sum(2), equal_nan=True, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(sums, b.sum(2), equal_nan=True, rtol=1e-4, atol=1e-5)


def test_inputs_that_lie_apart_are_read_in_order() -> None:
    x, b = torch.randn(6, 50, 3, 4).permute(2, 3, 0, 1), torch.randn(3, 8, 6, 50)[:, ::2]
    found = normalised.sum_normalised(x, b, *normalised.find_moments(x, 4, joined=True), 1e-5)
    again = normalised.sum_normalised(x.clone(), b.clone(), *normalised.find_moments(x.clone(), 4, joined=True), 1e-5)
    assert torch.equal(found[0], again[0])
    torch.testing.assert_close(found[1], b.sum((2, 3)))


def test_small_and_unequal_inputs_are_left_to_torch() -> None:
    assert not normalised.can_normalise(torch.zeros(2, 3), torch.zeros(2, 3))
    assert not normalised.can_normalise(torch.zeros(0, 3, 5), torch.zeros(0, 3, 5))
    assert not normalised.can_normalise(torch.zeros(2, 3, 9000), torch.zeros(2, 3, 9000).double())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_moments_and_sums_in_one_go_are_the_same(
    case: tuple, threads: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples, channels, groups, space = case
    torch.manual_seed(0)
    x, b = torch.randn(2, samples, channels, *space, dtype=dtype)
    x, eps = 3 + 2 * x, 1e-3
    grouped = x.double().reshape(samples, groups, -1)
    truth = sum_slowly(x, b, grouped.mean(2), grouped.var(2, correction=0), eps)
    monkeypatch.setattr(normalised, "ALONE", 1)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    sums = normalised.sum_by_groups(x.transpose(0, 1).contiguous().transpose(0, 1), b, groups, eps)
    torch.set_num_threads(before)
    close = 1e-5 if dtype == torch.float32 else 1e-11
    for one, other in zip(sums, truth, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=close, atol=close * (1 + float(other.abs().max())))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("shape", [(3, 1, 5), (4, 7, 16), (2, 70, 37), (5, 3, 130)])
@pytest.mark.parametrize("turned", [False, True])
def test_sums_over_positions_that_are_normalised_one_by_one(
    shape: tuple, turned: bool, threads: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    x, b = torch.randn(2, *shape, dtype=dtype)
    x, eps = 3 + 2 * x, 1e-3
    if turned:  # positions come first, and more numbers lie between them
        x = torch.cat([x, x], 2).transpose(0, 1).contiguous().transpose(0, 1)[..., : shape[2]]
    monkeypatch.setattr(normalised, "ALONE", 1)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    sums = normalised.sum_positions(x, b, eps)
    torch.set_num_threads(before)
    x_hat = F.layer_norm(x.double(), shape[2:], None, None, eps)
    close = 1e-5 if dtype == torch.float32 else 1e-11
    for one, other in zip(sums, ((b.double() * x_hat).sum(1), b.double().sum(1)), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=close, atol=close * (1 + float(other.abs().max())))


def test_sizes_that_do_not_fit_are_refused() -> None:
    x = torch.zeros(2, 6, 4)
    for b in (x[:, 1:], x.double(), x.transpose(1, 2).contiguous().transpose(1, 2)):
        with pytest.raises(ValueError, match="do not fit"):
            normalised.sum_positions(x, b, 1e-5)
    for b, groups in ((torch.zeros(2, 5, 4), 3), (x, 4), (x.double(), 3)):
        with pytest.raises(ValueError, match="do not fit"):
            normalised.sum_by_groups(x, b, groups, 1e-5)

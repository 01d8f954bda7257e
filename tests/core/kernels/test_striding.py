"""Walks through parameters, steps and gradients, against float64, one tensor at a time."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from cockpit_core.kernels import native
from cockpit_core.kernels.native import striding
from tests.core.kernels.test_native import LEVELS, WIDE

SIZES = ((1,), (15,), (0,), (16, 3), (3000,), (2**14 + 5,), (7, 5))


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    monkeypatch.setattr(striding, "LARGEST", 2**12)
    monkeypatch.setattr(striding, "ALONE", 2**11)
    yield
    torch.set_num_threads(before)


def make_some(dtype: torch.dtype, scale: float = 1.0) -> list[Tensor]:
    return [scale * torch.randn(size, dtype=dtype) for size in SIZES]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", WIDE, ids=str)
@pytest.mark.usefixtures("threads")
def test_lengths_and_differences(level: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """The differences to the bit; some have no partner, and some differences are not kept."""
    monkeypatch.setattr(striding, "find_library", lambda: native.open_level(level))
    torch.manual_seed(0)
    one, other = make_some(dtype), make_some(dtype)
    partners = [y if k % 3 else None for k, y in enumerate(other)]
    into = [torch.full_like(y, math.nan) if y is not None and k % 2 else None for k, y in enumerate(partners)]
    for (own, apart), x, y, to in zip(striding.try_apart(one, partners, into), one, partners, into, strict=True):
        assert own == pytest.approx(float(x.double().norm()), rel=1e-13)
        assert apart == pytest.approx(0.0 if y is None else float((x - y).double().norm()), rel=1e-13)
        assert to is None or (y is not None and torch.equal(to, x - y))
    assert striding.try_lengths(one) == [own for own, _ in striding.try_apart(one, other, [None] * len(one))]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", WIDE, ids=str)
@pytest.mark.parametrize("guess", [-0.1, 0.3, 0.0])
@pytest.mark.usefixtures("threads")
def test_how_far_a_step_runs_along(
    level: str, dtype: torch.dtype, guess: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left of a step along its gradient is rounding, and is found as such whatever the guess was."""
    monkeypatch.setattr(striding, "find_library", lambda: native.open_level(level))
    torch.manual_seed(0)
    gradients = [g for g in make_some(dtype) if g.numel()]
    places = [torch.randn_like(g) for g in gradients]
    steps = [(theta - 0.1 * g) - theta for theta, g in zip(places, gradients, strict=True)]
    squared = [float(g.double().square().sum()) for g in gradients]
    along = striding.find_along(steps, gradients, squared, [guess] * len(steps))
    precision = torch.finfo(dtype).eps
    for (factor, rest), s, theta in zip(along, steps, places, strict=True):
        allowed = precision * float(theta.double().norm() + 4 * s.double().norm())
        assert factor == pytest.approx(-0.1, rel=1e-4 if dtype == torch.float32 else 1e-12)
        assert math.sqrt(rest) <= allowed
    aside = [s + 0.01 * theta for s, theta in zip(steps, places, strict=True)]
    for (factor, rest), s, g, q in zip(
        striding.find_along(aside, gradients, squared, [guess] * len(steps)), aside, gradients, squared, strict=True
    ):
        c = float((s.double() * g.double()).sum()) / q
        assert factor == pytest.approx(c, rel=1e-9)
        assert rest == pytest.approx(float((s.double() - c * g.double()).square().sum()), rel=1e-6, abs=1e-25)


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e38])
def test_anything_may_be_in_them(value: float) -> None:
    """Squares of large single numbers are no infinities, and an infinite step runs along nothing."""
    x, g = torch.tensor([1.0, value]), torch.tensor([1.0, 2.0])
    (length,) = striding.try_lengths([x])
    assert math.isnan(length) if math.isnan(value) else length == pytest.approx(value, rel=1e-6)
    ((_, rest),) = striding.find_along([x], [g], [5.0], [0.5])
    assert rest > 1e70


def test_what_cannot_be_walked_through_is_refused() -> None:
    fine = torch.ones(4)
    turned, half = torch.ones(4, 2).t(), torch.ones(4, dtype=torch.float16)
    for others in ([fine, fine.double()], [turned], [half], [torch._neg_view(fine)], [fine.to_sparse()], []):
        assert not striding.can_walk(others)
        assert striding.try_lengths(others) is None
        with pytest.raises(ValueError, match="in one piece"):
            striding.find_along(others, others, [1.0] * len(others), [1.0] * len(others))
    with pytest.raises(ValueError, match="same size"):
        striding.try_apart([fine], [torch.ones(3)], [None])
    with pytest.raises(ValueError, match="same size"):
        striding.find_along([fine], [torch.ones(3)], [1.0], [1.0])


def test_memory_that_was_freed_is_not_read() -> None:
    """As offloading does it for a moment: torch itself would raise too, a kernel would end the training."""
    fine, freed = torch.ones(4), torch.ones(4)
    freed.untyped_storage().resize_(0)
    for one, other, into in ((freed, None, None), (fine, freed, None), (fine, fine, freed)):
        with pytest.raises(ValueError, match="freed"):
            striding.try_apart([one], [other], [into])
    for step, gradient in ((freed, fine), (fine, freed)):
        with pytest.raises(ValueError, match="freed"):
            striding.find_along([step], [gradient], [1.0], [1.0])

"""Norms alone, from products of positions with each other; and what notices that the gradient is another one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import cockpit_core
from cockpit_core.engine import by_products
from cockpit_core.engine.clock import Clock
from cockpit_core.engine.layer_result import ACROSS, Job, LayerResult, judge
from cockpit_core.engine.statistics import Request
from cockpit_core.kernels.native import find_library
from cockpit_core.layers.contribution import Contribution, Outer, Positions
from cockpit_core.layers.standing_in import Tried
from cockpit_core.layers.ways import takes_products
from tests.core.engine.test_project_on_mean import OTHERS

B, S, IN, OUT = 6, 5, 70, 50
pytestmark = pytest.mark.skipif(find_library() is None, reason="needs native kernels")


def make_part(dtype: torch.dtype = torch.float32, kind: str = "positions") -> Contribution:
    torch.manual_seed(0)
    shape = torch.Size((OUT, IN))
    if kind == "one":
        return Outer(torch.randn(B, OUT, dtype=dtype), torch.randn(B, IN, dtype=dtype), shape, 0.3)
    b, a = torch.randn(S, B, OUT, dtype=dtype).transpose(0, 1), torch.randn(B, S, 2 * IN, dtype=dtype)[..., :IN]
    part = Positions(b, a, shape, 0.3)
    return Tried(part, lambda: part) if kind == "tried" else part


def make_job(gradient: Tensor, **request: bool) -> Job:
    asked = Request(norms=True, dots=False)
    for name, value in request.items():
        setattr(asked, name, value)
    return Job([], B, 1.0, asked, lambda name: gradient, lambda name, _: {"gradient": gradient}, owns_all=True)


def reduce(part: Contribution, job: Job) -> LayerResult:
    result, along = LayerResult("weight", [part]), {"gradient": job.gradient("weight")}
    assert by_products.may_wait(result, along, job)
    result.along = along
    by_products.reduce_waiting([result], job, Clock())
    return result


def judged(part: Contribution, gradient: Tensor) -> str:
    job = make_job(gradient)
    return judge([reduce(part, job)], {"weight": gradient}, job).get("weight", "")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kind", ["positions", "one", "tried"])
def test_norms_are_those_of_formed_gradients(dtype: torch.dtype, kind: str) -> None:
    part = make_part(dtype, kind)
    G = part.form(0, B)
    result = reduce(part, make_job(G.mean(0)))
    assert result.statistics is not None
    assert result.statistics.products is not None
    torch.testing.assert_close(result.statistics.norms, G.double().flatten(1).square().sum(1), rtol=1e-5, atol=0)
    assert result.statistics.products.length == pytest.approx(float(G.mean(0).norm()), rel=1e-6)
    assert judged(part, G.mean(0)) == ""


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("kind", ["positions", "one"])
def test_another_gradient_is_noticed(name: str, kind: str) -> None:
    part = make_part(kind=kind)
    assert judged(part, OTHERS[name](part.form(0, B).mean(0)))


@pytest.mark.parametrize("place", [(0, 0), (OUT // 2, 3), (OUT - 1, IN - 1)])
def test_one_element_that_is_another_is_noticed(place: tuple[int, int]) -> None:
    part = make_part()
    gradient = part.form(0, B).mean(0).clone()
    gradient[place] += 0.2 * float(gradient.norm())
    assert judged(part, gradient)


@pytest.mark.parametrize("factor", [1e-18, 1e-3, 1e12])
def test_size_does_not_matter(factor: float) -> None:
    part = make_part()
    part.b = part.b * factor  # type: ignore[attr-defined]
    gradient = part.form(0, B).mean(0)
    assert judged(part, gradient) == ""
    assert judged(part, 1.01 * gradient)


def test_gradient_of_zero_is_looked_at_along_another_direction() -> None:
    part = make_part()
    assert judged(part, torch.zeros(OUT, IN))
    part.b = part.b - part.b  # type: ignore[attr-defined]
    assert judged(part, torch.zeros(OUT, IN)) == ""


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_is_no_alarm_and_stays_so(value: float) -> None:
    part = make_part()
    part.b[2, 1, 3] = value  # type: ignore[attr-defined]
    gradient = part.form(0, B).mean(0)
    result = reduce(part, make_job(gradient))
    assert result.statistics is not None
    assert result.statistics.norms is not None
    assert (~torch.isfinite(result.statistics.norms)).tolist() == [n == 2 for n in range(B)]
    assert judged(part, gradient) == ""


def test_gradients_are_formed_where_positions_cancel() -> None:
    """The products of positions have eight digits; what is left of them here is in the ninth."""
    part = make_part()
    b, a = part.b.clone(), part.a.clone()  # type: ignore[attr-defined]
    b[:, 1:], a[:, 1:] = 0, 0
    b[:, 1], a[:, 1] = -b[:, 0], a[:, 0] * (1 + 1e-3)
    part = Positions(b, a, torch.Size((OUT, IN)), 1.0)
    G = part.form(0, B)
    result = reduce(part, make_job(G.mean(0)))
    assert result.statistics is not None
    assert result.statistics.products is None
    torch.testing.assert_close(result.statistics.norms, G.double().flatten(1).square().sum(1), rtol=1e-4, atol=0)


def test_whatever_asks_for_more_does_not_wait() -> None:
    part = make_part()
    gradient = part.form(0, B).mean(0)
    one, along = LayerResult("weight", [part]), {"gradient": gradient}
    assert by_products.may_wait(one, along, make_job(gradient))
    assert not by_products.may_wait(one, along, make_job(gradient, dots=True))
    assert not by_products.may_wait(one, along, make_job(gradient, squares=True))
    assert not by_products.may_wait(one, along | {ACROSS: gradient}, make_job(gradient))
    assert not by_products.may_wait(LayerResult("two passes", [part, part]), along, make_job(gradient))
    for name, value in (("keep", True), ("gram", 3), ("half", True), ("owns_all", False), ("samples", B + 1)):
        job = make_job(gradient)
        setattr(job, name, value)
        assert not by_products.may_wait(one, along, job)
    assert takes_products(16, 128, 384)
    assert not takes_products(128, 128, 128)


class Tokens(nn.Module):
    """``twice``: a function uses its weight too."""

    def __init__(self, twice: bool):
        super().__init__()
        self.inner, self.head, self.twice = nn.Linear(IN, IN), nn.Linear(IN, 3), twice

    def forward(self, x: Tensor) -> Tensor:
        more = torch.tanh(x @ self.inner.weight) if self.twice else 0
        return self.head((torch.tanh(self.inner(x)) + more).mean(1))


@pytest.mark.parametrize("twice", [False, True])
def test_norm_test_is_right(twice: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x, y = Tokens(twice), torch.randn(B, S, IN), torch.randint(3, (B,))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    truths = []
    with cockpit_core.track(model, None, optimizer, tmp_path, config=["NormTest"], on_error="raise") as run:
        for _ in range(4):
            loss: Callable[[int], Tensor] = lambda n: F.cross_entropy(model(x[n : n + 1]), y[n : n + 1])  # noqa: E731
            each = [torch.autograd.grad(loss(n), list(model.parameters())) for n in range(B)]
            G = torch.stack([torch.cat([g.flatten() for g in own]) for own in each]).double()
            truths.append(float((G.square().sum() / G.mean(0).square().sum() - B) / (B * (B - 1))) ** 0.5)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    steps, values = run.data.scalars("NormTest")
    assert len(steps) >= 2
    np.testing.assert_allclose(values, [truths[step] for step in steps], rtol=1e-4)

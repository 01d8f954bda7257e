"""Projections on the gradient without it, from products of samples with each other; and what notices that it is another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import cockpit_core
from cockpit_core.engine.clock import Clock
from cockpit_core.engine.layer_result import ACROSS, Job, LayerResult, check, judge, reduce_parts
from cockpit_core.engine.statistics import Request
from cockpit_core.layers.contribution import Outer
from cockpit_core.layers.ways import takes_pairs

B, IN, OUT = 6, 300, 250


def make_part(dtype: torch.dtype = torch.float32) -> tuple[Outer, Tensor]:
    torch.manual_seed(0)
    part = Outer(torch.randn(B, OUT, dtype=dtype), torch.randn(B, IN, dtype=dtype), torch.Size((OUT, IN)), 0.3)
    return part, part.form(0, B).mean(0)


def make_job(gradient: Tensor, *, owns_all: bool = True, directions: dict[str, Tensor] | None = None) -> Job:
    along = {"gradient": gradient} if directions is None else directions
    return Job([], B, 1.0, Request(norms=True), lambda name: gradient, lambda name, _: along, owns_all=owns_all)


def reduce(part: Outer, job: Job) -> LayerResult:
    result = LayerResult("weight", [part])
    gradient = job.gradient("weight")
    reduce_parts(result, job.directions("weight", gradient), job, gradient, Clock())
    return result


def judged(part: Outer, gradient: Tensor) -> str:
    job = make_job(gradient)
    return judge([reduce(part, job)], {"weight": gradient}, job).get("weight", "")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_numbers_are_those_of_a_projection(dtype: torch.dtype) -> None:
    part, gradient = make_part(dtype)
    result = reduce(part, make_job(gradient))
    assert result.statistics is not None
    assert result.statistics.probe is not None
    truth = part.form(0, B).flatten(1).double() @ gradient.flatten().double()
    torch.testing.assert_close(result.statistics.projections["gradient"], truth, rtol=1e-5, atol=1e-6)
    assert judged(part, gradient) == ""


def flip_rows(gradient: Tensor) -> Tensor:
    return gradient.flip(0)


OTHERS: dict[str, Callable[[Tensor], Tensor]] = {
    "of the other sign": torch.neg,
    "with its rows in another order": flip_rows,
    "with its columns in another order": lambda g: g.roll(1, 1),
    "twice as long": lambda g: 2 * g,
    "with a row that is zero": lambda g: torch.cat([torch.zeros_like(g[:1]), g[1:]]),
    "with more in it": lambda g: g + 0.01 * torch.randn_like(g),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_gradient_is_noticed(name: str) -> None:
    """The first three are as long as the mean of the samples: without the probe nothing would show."""
    part, gradient = make_part()
    assert judged(part, OTHERS[name](gradient))


def test_gradient_of_more_than_these_samples_is_projected_on() -> None:
    part, gradient = make_part()
    both = {"gradient": gradient, ACROSS: torch.ones_like(gradient)}
    for job in (make_job(gradient, owns_all=False), make_job(gradient, directions=both)):
        result = reduce(part, job)
        assert result.statistics is not None
        assert result.statistics.probe is None
    short = make_job(gradient)
    short.samples = B + 1  # another batch appeared
    result = reduce(part, short)
    assert result.statistics is not None
    assert result.statistics.probe is None
    assert check(result, gradient, 0.0, 1.0, short)


def test_small_and_thin_matrices_are_projected_on() -> None:
    assert takes_pairs(128, 784, 1000)
    assert not takes_pairs(128, 784, 10)
    assert not takes_pairs(1, 100, 100)
    assert not takes_pairs(512, 784, 1000)


class Twice(nn.Module):
    """Its weight is used by a function too."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(IN, IN), nn.Linear(IN, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.inner(x)) + torch.tanh(x @ self.inner.weight))


@pytest.mark.parametrize("make", [Twice, lambda: nn.Sequential(nn.Linear(IN, IN), nn.Tanh(), nn.Linear(IN, 3))])
def test_norm_test_is_right(make: Callable[[], nn.Module], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x, y = make(), torch.randn(B, IN), torch.randint(3, (B,))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    truths = []
    with cockpit_core.track(model, None, optimizer, tmp_path, config="economy", on_error="raise") as run:
        for _ in range(4):
            each = [
                torch.autograd.grad(F.cross_entropy(model(x[n : n + 1]), y[n : n + 1]), list(model.parameters()))
                for n in range(B)
            ]
            G = torch.stack([torch.cat([g.flatten() for g in own]) for own in each]).double()
            g = G.mean(0)
            along = (G @ g) / (g @ g)
            truths.append(float(((along - 1) ** 2).sum() / (B * (B - 1))) ** 0.5)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    steps, values = run.data.scalars("InnerTest")
    assert len(steps) >= 2
    np.testing.assert_allclose(values, [truths[step] for step in steps], rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(10, 784), (1, 5), (32, 33), (33, 64), (8, 8)])
def test_several_directions_at_once_are_those_one_by_one(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    out, inner = shape
    b, a = torch.randn(16, out, dtype=dtype), torch.randn(16, inner, dtype=dtype)
    directions = [torch.randn(out, inner, dtype=dtype), torch.randn(inner, out, dtype=dtype).t()]
    outer = Outer(b, a, torch.Size(shape), 3.0)
    several = outer.project_each(directions)
    narrow = out <= 32 and out < inner
    assert (several is not None) == narrow
    for own, direction in zip(several or (), directions, strict=False):
        truth = 3.0 * torch.einsum("no,oi,ni->n", b.double(), direction.double(), a.double())
        torch.testing.assert_close(own.double(), truth, rtol=1e-4, atol=1e-4)
    assert outer.project_each([directions[0].half(), directions[1]]) is None  # left to whoever knows what to do

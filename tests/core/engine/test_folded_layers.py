"""Convolutions that wait for the end of the pass: the same numbers, and a gradient that is another one is noticed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cockpit_core
from cockpit_core.engine import folded_layers
from cockpit_core.engine.clock import Clock
from cockpit_core.engine.layer_result import ACROSS, Job, LayerResult, judge
from cockpit_core.engine.statistics import Request
from cockpit_core.kernels.native import find_library
from cockpit_core.layers.conv import Patches, spread_runs

B, IN, OUT, SIDE = 5, 6, 8, 9
pytestmark = pytest.mark.skipif(find_library() is None, reason="needs native kernels")


def make_part(dtype: torch.dtype = torch.float32, kept: float = 1.0) -> Patches:
    torch.manual_seed(0)
    left = torch.randn(B, OUT, SIDE, SIDE, dtype=dtype) * (torch.rand(B, OUT, SIDE, SIDE) < kept)
    geometry = (3, 3), (1, 1), (1, 1)
    image = torch.randn(B, IN, SIDE, SIDE, dtype=dtype)
    return Patches(left, image, geometry, 1, torch.Size((OUT, IN, 3, 3)), 0.3, (1, 1, 1, 1))


def make_job(gradient: Tensor, **request: object) -> Job:
    asked = Request(norms=True)
    for name, value in request.items():
        setattr(asked, name, value)
    return Job([], B, 1.0, asked, lambda name: gradient, lambda name, _: {"gradient": gradient}, owns_all=True)


def reduce(part: Patches, job: Job) -> LayerResult:
    result, along = LayerResult("weight", [part]), {"gradient": job.gradient("weight")}
    assert folded_layers.may_wait(result, along, job)
    result.along = along
    folded_layers.reduce_waiting([result], job, Clock())
    return result


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_norms_and_projections_are_those_of_formed_gradients(dtype: torch.dtype) -> None:
    part = make_part(dtype)
    G = part.form(0, B)
    gradient = G.mean(0)
    statistics = reduce(part, make_job(gradient)).statistics
    assert statistics is not None
    rows = G.double().flatten(1)
    torch.testing.assert_close(statistics.norms, rows.square().sum(1), rtol=1e-5, atol=0)
    torch.testing.assert_close(
        statistics.projections["gradient"], rows @ gradient.double().flatten(), rtol=1e-4, atol=1e-3
    )


@pytest.mark.parametrize("factor", [0.0, -1.0, 0.999, 1.01, 2.0])
def test_another_gradient_is_noticed(factor: float) -> None:
    part = make_part()
    gradient = part.form(0, B).mean(0)
    own, other = make_job(gradient), make_job(factor * gradient)
    assert judge([reduce(part, own)], {"weight": gradient}, own) == {}
    assert judge([reduce(part, other)], {"weight": factor * gradient}, other)


def test_who_asks_for_more_gets_a_turn() -> None:
    part = make_part()
    gradient = part.form(0, B).mean(0)
    along, result = {"gradient": gradient}, LayerResult("weight", [part])
    job = make_job(gradient)
    assert folded_layers.may_wait(result, along, job)
    assert not folded_layers.may_wait(result, along, make_job(gradient, squares=True))
    assert not folded_layers.may_wait(result, along, make_job(gradient, norms=False))
    assert not folded_layers.may_wait(result, along | {ACROSS: gradient}, job)
    assert not folded_layers.may_wait(result, {"gradient": gradient.double()}, job)
    assert not folded_layers.may_wait(LayerResult("weight", [make_part(kept=0.1)]), along, job)  # few are not zero
    assert not folded_layers.may_wait(LayerResult("weight", [part, part]), along, job)
    for name, value in {"keep": True, "gram": 3}.items():
        setattr(job, name, value)
        assert not folded_layers.may_wait(result, along, job)
        setattr(job, name, type(value)())


def test_a_network_has_the_norms_of_plain_autograd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited = []
    reduce_waiting = folded_layers.reduce_waiting
    monkeypatch.setattr(
        folded_layers, "reduce_waiting", lambda some, *rest: (waited.extend(some), reduce_waiting(some, *rest))
    )
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.Tanh(), nn.Conv2d(8, 4, 3, stride=2, groups=2)
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(4 * 16, 3))
    loss_fn, optimizer = nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(6, 3, 10, 10), torch.randint(3, (6,))
    parameters = list(model.parameters())
    each = [torch.autograd.grad(loss_fn(model(x[n : n + 1]), y[n : n + 1]), parameters) for n in range(6)]
    squares = np.array([sum(float(g.double().square().sum()) for g in own) for own in each])
    mean = [torch.stack(some).mean(0) for some in zip(*each, strict=True)]
    length = sum(float(g.double().square().sum()) for g in mean)
    with cockpit_core.track(model, loss_fn, optimizer, tmp_path, config=["NormTest"], schedule=1) as run:
        loss_fn(model(x), y).backward()
        optimizer.step()
    _, values = run.data.scalars("NormTest")
    assert values[0] == pytest.approx(np.sqrt((squares.sum() / length - 6) / 30), rel=1e-4)
    assert {result.name for result in waited} == {"0.weight", "3.weight"}


@pytest.mark.parametrize("size", [1, 7, 2048, 2049, 5000, 262144])
def test_runs_that_are_looked_at_lie_inside_and_are_spread(size: int) -> None:
    values = torch.arange(size + 10)[5:-5].reshape(1, 1, -1)
    seen = spread_runs(values)
    assert seen.numel() == min(size, 2048)
    assert int(seen.min()) == 5
    assert int(seen.max()) >= 5 + size - 1 - 31  # whole steps may leave a few behind the last run
    assert int(seen.max()) < 5 + size

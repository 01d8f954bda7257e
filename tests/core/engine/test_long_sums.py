"""Sums over millions of float32 elements against double precision."""

from __future__ import annotations

import math

import pytest
import torch

from cockpit_core.engine.alpha.along import Layer, find_factors, walk_along
from cockpit_core.foundation import long_sums
from cockpit_core.foundation.transfer import Transfer
from cockpit_core.quantities.norms import measure_norms, measure_places

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


@pytest.mark.parametrize("count", [5, long_sums.PIECE + 3, long_sums.CHUNK, 2 * long_sums.CHUNK + 7, COUNT])
def test_differences_and_their_lengths(count: int, pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    """In one walk, the same as one after the other; also beside short ones, and where memory is not in one piece."""
    a, b = (x[:count] for x in pair)
    half = count // 2
    apart = pair[0][: 2 * half].view(half, 2).T, pair[1][: 2 * half].view(2, half)
    one, other = [a, a[:3], apart[0]], [b, b[:3], apart[1]]
    kept, lengths = long_sums.differences(one, other, keep=True)
    assert all(torch.equal(found, x - y) for found, x, y in zip(kept, one, other, strict=True))
    true = [float((x - y).double().norm()) for x, y in zip(one, other, strict=True)]
    assert lengths.tolist() == pytest.approx(true, rel=3e-7)
    nothing, same = long_sums.differences(one, other, keep=False)
    assert not nothing
    assert torch.equal(same, lengths)


@pytest.mark.parametrize("start", ["whole", "zeros first", "noise first"])
def test_a_step_along_the_gradient_is_found_in_one_walk(start: str, pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Also where the first elements, which give the guess, have no gradient or a tiny one: pixels at the border."""
    theta, g = pair[1][:COUNT].clone(), pair[0].clone()
    g[:4096] *= {"whole": 1.0, "zeros first": 0.0, "noise first": 1e-9}[start]
    s = (theta - 1e-2 * g) - theta
    layer = Layer.of(s, g, theta, long_sums.norm(g))
    factors = find_factors({"w": layer}, lambda: {"w": long_sums.norm(s)}, Transfer())
    assert factors["w"] == pytest.approx(-1e-2, rel=1e-6)
    factor, rest, length = walk_along(layer, 0.3)  # a bad guess
    c = float(s.double() @ g.double()) / float(g.double() @ g.double())
    assert factor == pytest.approx(c, rel=1e-9)
    assert math.sqrt(rest) == pytest.approx(float((s.double() - c * g.double()).norm()), rel=1e-3)
    assert length == pytest.approx(float(theta.double().norm()), rel=1e-6)
    aside = Layer.of(s + 1e-4 * theta, g, theta, long_sums.norm(g))
    assert find_factors({"w": aside}, lambda: {"w": long_sums.norm(s)}, Transfer())["w"] is None


def test_lengths_and_distances_are_measured_in_one_walk() -> None:
    """Long and short ones, of both types, in another order in memory; one that did not exist at the start."""
    shapes = {"bias": (10,), "wide": (300, 1000), "odd": (2**17 + 5,), "double": (70_000,), "none": (20_000,)}
    now = {name: torch.randn(shape) for name, shape in shapes.items()} | {"turned": torch.randn(40, 1000).t()}
    now["double"] = now["double"].double()
    start = {name: x + 0.01 * torch.randn_like(x) for name, x in now.items() if name != "none"}
    lengths, moved = measure_places(now, start, Transfer())
    assert list(lengths) == list(now) and list(moved) == list(start)
    for name, x in now.items():
        assert lengths[name] == pytest.approx(float(x.double().norm()), rel=1e-6)
    for name, x in start.items():
        assert moved[name] == pytest.approx(float((now[name].double() - x.double()).norm()), rel=1e-6)


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e300])
def test_short_vectors_may_hold_anything(value: float) -> None:
    vector = torch.tensor([1.0, value], dtype=torch.float64)
    (length,) = long_sums.norms([vector]).tolist()
    assert math.isnan(length) if math.isnan(value) else length == math.inf

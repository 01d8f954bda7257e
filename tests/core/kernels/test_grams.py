"""Norms from products of positions against gradients that are formed, in float64; on every instruction set."""

from __future__ import annotations

import pytest
import torch

from cockpit_core.kernels import native
from cockpit_core.kernels.native import grams, walking
from cockpit_core.layers.probe import spread_signs
from tests.core.kernels.test_native import LEVELS, TOLERANCE, WIDE

SIZES = ((1, 3, 5), (2, 16, 16), (5, 7, 37), (9, 33, 4), (16, 1, 70))


def make_sides(dtype: torch.dtype, samples: int = 3) -> list[grams.Sides]:
    torch.manual_seed(0)
    layers = []
    for k, (positions, out, inner) in enumerate(SIZES):
        b = torch.randn(positions, samples, out, dtype=dtype).transpose(0, 1)  # rows lie apart
        a = torch.randn(samples, positions, inner + 3, dtype=dtype)[..., 2:-1]
        scale = 0.5 * (k + 1)
        gradient = scale * torch.einsum("nso,nsi->oi", b, a) / samples
        fixed = spread_signs(out, dtype), spread_signs(inner, dtype)
        layers.append(grams.Sides(b, a, scale, gradient, *fixed))
    return layers


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", WIDE, ids=str)
@pytest.mark.parametrize("threads", [1, 3])
def test_norms_and_sums_are_those_of_formed_gradients(
    level: str, dtype: torch.dtype, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (grams, walking):
        monkeypatch.setattr(module, "find_library", lambda: native.open_level(level))
    monkeypatch.setattr(grams, "ALONE", 1)
    layers, before = make_sides(dtype), torch.get_num_threads()
    torch.set_num_threads(threads)
    products = grams.reduce_grams(layers)
    torch.set_num_threads(before)
    for own, layer in zip(products, layers, strict=True):
        G = layer.scale * torch.einsum("nso,nsi->noi", layer.b.double(), layer.a.double())
        single = layer.scale**2 * (layer.b.double().square().sum(2) * layer.a.double().square().sum(2)).sum(1)
        norms, mean = G.square().sum((1, 2)), G.mean(0)
        allowed = 10 * TOLERANCE[dtype]
        torch.testing.assert_close(own.norms, norms, rtol=allowed, atol=0)
        assert own.left == pytest.approx(float((norms / single).min()), rel=allowed)
        assert own.length == pytest.approx(float(mean.norm()), rel=allowed)
        along = torch.einsum("noi,o,i->n", G, layer.left0.double(), layer.right0.double())
        size = float(along.abs().mean())
        assert own.fixed == pytest.approx((float(along.mean()), size), abs=allowed * size)
        assert own.expected[0] == pytest.approx(float(along.mean()), abs=allowed * size)
        left = mean @ layer.right0.double()
        right = mean.T @ (left / left.norm())
        along = torch.einsum("noi,o,i->n", G, left / left.norm(), right / right.norm())
        size = float(along.abs().mean())
        assert own.expected[1] == pytest.approx(float(right.norm()), rel=allowed)
        assert own.along == pytest.approx((float(along.mean()), size), abs=allowed * size)
        assert own.along[0] == pytest.approx(own.expected[1], rel=allowed)


def test_what_does_not_fit_is_refused_before_a_kernel_reads_it() -> None:
    good = make_sides(torch.float32)[2]
    parts = {name: getattr(good, name) for name in ("b", "a", "scale", "gradient", "left0", "right0")}
    bad = {
        "b": good.b[:, 1:],
        "a": good.a.double(),
        "gradient": good.gradient.T,
        "left0": good.left0[1:],
        "right0": good.right0.double(),
    }
    for name, value in bad.items():
        with pytest.raises(ValueError, match="do not fit"):
            grams.reduce_grams([grams.Sides(**(parts | {name: value}))])
    turned = torch.randn(3, 7, 5).transpose(1, 2)
    with pytest.raises(ValueError, match="do not fit"):
        grams.reduce_grams([grams.Sides(**(parts | {"b": turned}))])

"""Products of individual gradients with each other: from sums in registers, and from stored blocks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from cockpit_core.kernels import LogBins, native
from cockpit_core.kernels.native import comparing, dense
from cockpit_core.kernels.native.comparing import MOST_COMPARED, compare_blocks
from cockpit_core.layers.contribution import Positions
from tests.core.kernels.test_dense import TOKENS, form, make_tokens
from tests.core.kernels.test_native import (
    LEVELS,
    SHAPES,
    TOLERANCE,
    WIDE,
    level,  # noqa: F401  (a fixture)
    make_patches,
)


@pytest.fixture(params=LEVELS)
def own_level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(comparing, "find_library", lambda: native.open_level(request.param))
    return request.param


def assert_gram(found: Tensor | None, G: Tensor, dtype: torch.dtype) -> None:
    """To rounding of the longest two."""
    assert found is not None
    G = G.double()
    lengths = G.norm(dim=1)
    assert found.dtype == torch.float64
    assert ((found - G @ G.T).abs() <= TOLERANCE[dtype] * lengths[:, None] * lengths).all()
    assert torch.equal(found, found.T)


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("dtype", WIDE, ids=str)
@pytest.mark.parametrize("name", TOKENS)
def test_tokens_are_compared_in_the_pass_that_sums_them(name: str, dtype: torch.dtype) -> None:
    b, a, directions = make_tokens(name, dtype)
    G = form(b, a, 0.5)
    for compared in {1, min(3, len(b)), min(len(b), MOST_COMPARED)}:
        found = dense.reduce_positions(b, a, 0.5, directions, None, compared)
        assert_gram(found.gram, G[:compared], dtype)
        torch.testing.assert_close(found.norms, G.square().sum(1), rtol=TOLERANCE[dtype], atol=0)
    assert dense.reduce_positions(b, a, 0.5, directions, None).gram is None


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("dtype", WIDE, ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_a_convolution_compares_its_first_samples(name: str, dtype: torch.dtype) -> None:
    part, directions = make_patches(name, dtype)
    G = part.form(0, part.samples).flatten(1)
    few = min(3, part.samples)
    assert part.compares(few)
    assert_gram(part.compare(few), G[:few], dtype)
    part.left = 0.02 * torch.randn_like(part.left)
    found = part.reduce(directions, None, few)
    assert found is not None
    assert_gram(found.gram, part.form(0, few).flatten(1), dtype)


@pytest.mark.usefixtures("own_level")
@pytest.mark.parametrize("dtype", WIDE, ids=str)
def test_stored_blocks_are_compared_with_one_call(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    shapes = ((16, 5000), (2, 3), (1, 1), (7, 384), (13, 17), (4, 1024))
    blocks = [torch.randn(2 * rows, width + 1, dtype=dtype)[::2, 1:] for rows, width in shapes]  # rows lie apart
    blocks.append(torch.randn(40, 3, dtype=dtype).T)  # and columns
    scales = [0.5 * (k + 1) for k in range(len(blocks))]
    for G, scale, found in zip(blocks, scales, compare_blocks(blocks, scales), strict=True):
        assert_gram(found, scale * G, dtype)


@pytest.mark.usefixtures("own_level")
@pytest.mark.parametrize("what", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_with_its_sample(what: float) -> None:
    G = torch.randn(6, 37)
    G[4, 36] = what
    (found,) = compare_blocks([G], [1.0])
    spoiled = torch.zeros(6, 6, dtype=torch.bool)
    spoiled[4], spoiled[:, 4] = True, True
    assert torch.equal(~torch.isfinite(found), spoiled)


@pytest.mark.parametrize("channels", [dense.CHANNELS, 1000])
def test_threads_share_channels_or_samples(channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of few channels, samples are shared, and those who are compared are in one share."""
    monkeypatch.setattr(dense, "CHANNELS", channels)
    b, a, directions = make_tokens("samples that take turns", torch.float32)
    alone = dense.reduce_positions(b, a, 1.0, directions, LogBins(2), 16)
    monkeypatch.setattr(dense, "ALONE", 1)
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    shared = dense.reduce_positions(b, a, 1.0, directions, LogBins(2), 16)
    torch.set_num_threads(before)
    assert torch.equal(alone.counts, shared.counts)
    torch.testing.assert_close(alone.gram, shared.gram, rtol=1e-6, atol=1e-6 * float(alone.gram.max()))
    torch.testing.assert_close(alone.norms, shared.norms, rtol=1e-6, atol=0.0)
    torch.testing.assert_close(alone.dots, shared.dots, rtol=1e-6, atol=1e-6 * float(alone.dots.abs().max()))
    assert dense.together([(0, 8), (8, 16), (16, 24)], 20) == [(0, 20), (20, 24)]
    assert dense.together([(0, 8), (8, 16)], 16) == [(0, 16)]


def test_more_than_a_kernel_compares_is_refused() -> None:
    b, a, _ = make_tokens("samples that take turns", torch.float32)
    with pytest.raises(ValueError, match="cannot be compared"):
        dense.reduce_positions(b, a, 1.0, [], None, MOST_COMPARED + 1)
    with pytest.raises(ValueError, match="cannot be compared"):
        dense.reduce_positions(b[:2], a[:2], 1.0, [], None, 3)
    with pytest.raises(ValueError, match="compared together"):
        compare_blocks([torch.zeros(MOST_COMPARED + 1, 3)], [1.0])
    assert not Positions(b, a, torch.Size((70, 130)), 1.0).compares(MOST_COMPARED + 1)

"""Individual gradients summed in registers over all positions: those of tokens, and of convolutions whose output gradients
are mostly not zero. Values are those of float64, counts those of the plain path but for what lies next to an edge.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from cockpit_core.kernels import Bins, LogBins
from cockpit_core.kernels.native import convolving, dense
from cockpit_core.kernels.native.reducing import Reduced, reduce_block
from cockpit_core.layers.contribution import Positions
from cockpit_core.layers.conv import Patches
from tests.core.kernels.test_native import (
    SHAPES,
    TOLERANCE,
    WIDE,
    assert_counts_but_for_edges,
    count_plainly,
    level,  # noqa: F401  (a fixture)
    make_patches,
)

HUNDRED = Bins(-2, 2, 100)
TOKENS = {
    # name: samples, positions, in, out
    "one vector": (3, 5, 16, 6),
    "less than a vector": (2, 7, 3, 1),
    "many vectors and a rest": (2, 9, 150, 13),
    "more than sums may wait": (2, 6, 200, 130),
    "long": (1, 400, 20, 17),
    "one position": (4, 1, 33, 9),
    "samples that take turns": (35, 2, 130, 70),
}


def make_tokens(name: str, dtype: torch.dtype) -> tuple[Tensor, Tensor, list[Tensor]]:
    torch.manual_seed(4)
    samples, positions, inner, out = TOKENS[name]
    b, a = 0.1 * torch.randn(samples, positions, out, dtype=dtype), torch.randn(samples, positions, inner, dtype=dtype)
    return b, a, [torch.randn(out, inner, dtype=dtype) for _ in range(2)]


def form(b: Tensor, a: Tensor, scale: float) -> Tensor:
    """One sample and one position at a time, in float64."""
    G = torch.zeros(len(b), b.shape[2], a.shape[2], dtype=torch.float64)
    for n in range(len(b)):
        for s in range(b.shape[1]):
            G[n] += torch.outer(b[n, s].double(), a[n, s].double())
    return scale * G.flatten(1)


def assert_right(found: Reduced, G: Tensor, directions: list[Tensor], bins: Bins | None, dtype: torch.dtype) -> None:
    torch.testing.assert_close(found.norms, G.square().sum(1), rtol=TOLERANCE[dtype], atol=0)
    for k, direction in enumerate(directions):
        along = direction.double().flatten()
        assert ((found.dots[:, k] - G @ along).abs() <= 10 * TOLERANCE[dtype] * G.norm(dim=1) * along.norm()).all()
    if bins is not None:
        assert_counts_but_for_edges(found.counts, G, bins)


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("dtype", WIDE, ids=str)
@pytest.mark.parametrize("name", TOKENS)
def test_tokens_are_summed_without_a_stored_block(name: str, dtype: torch.dtype) -> None:
    b, a, directions = make_tokens(name, dtype)
    for number, bins in ((0, HUNDRED), (1, None), (2, HUNDRED)):
        found = dense.reduce_positions(b, a, 0.5, directions[:number], bins)
        assert_right(found, form(b, a, 0.5), directions[:number], bins, dtype)


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("dtype", WIDE, ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_a_convolution_with_dense_output_gradients(name: str, dtype: torch.dtype) -> None:
    part, directions = make_patches(name, dtype)
    part.left = 0.02 * torch.randn_like(part.left)
    assert part.squares() is None  # no walk over what is not zero
    twin = Patches(part.left.double(), part.image.double(), part.geometry, part.groups, part.shape, part.scale)
    found = part.reduce(directions, HUNDRED)
    assert found is not None
    assert_right(found, twin.form(0, part.samples).flatten(1), directions, HUNDRED, dtype)


@pytest.mark.usefixtures("level")
def test_tokens_that_lie_apart_are_read_where_they_are() -> None:
    b, a = torch.randn(12, 4, 20).transpose(0, 1)[:, ::2, 3:13], torch.randn(4, 30, 6).transpose(1, 2)[:, :, 1:24]
    directions = [torch.randn(23, 10).T]
    assert_right(dense.reduce_positions(b, a, 1.0, directions, HUNDRED), form(b, a, 1.0), directions, HUNDRED, b.dtype)


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("bins", [HUNDRED, LogBins(2)], ids=["linear", "logarithmic"])
@pytest.mark.parametrize("what", [float("nan"), float("inf"), 0.0, 1e-42])
def test_nan_infinity_zeros_and_subnormals_are_as_in_a_stored_block(what: float, bins: Bins | LogBins) -> None:
    """Products of ones and twos are exact in any order, so that counts agree to the bit. 0 * inf is NaN here too."""
    torch.manual_seed(5)
    b, a = torch.randint(-2, 3, (3, 6, 7)).float(), torch.randint(-1, 2, (3, 6, 37)).float()
    a[1, 2, 5], b[1, 2, :3], b[2], b[0, 0, 0] = what, 0, what, what
    part = Positions(b, a, torch.Size((7, 37)), 1.0)
    G = part.form(0, 3).flatten(1)
    found = part.reduce([torch.ones(7, 37)], bins)
    assert found is not None
    assert torch.equal(found.counts, count_plainly(G, bins))
    torch.testing.assert_close(found.norms, G.double().square().sum(1), equal_nan=True)
    torch.testing.assert_close(found.dots[:, 0], G.double().sum(1), equal_nan=True)


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("where", ["image", "left"])
@pytest.mark.parametrize("what", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_in_a_convolution_is_as_in_a_stored_block(where: str, what: float) -> None:
    """Story: 0 * inf is NaN; whoever skips the zeros finds a finite gradient. So all positions are summed."""
    part, directions = make_patches("three by three", torch.float32)
    part.left[1] = 0
    getattr(part, where)[1].view(-1)[5] = what
    found, G = part.reduce(directions, HUNDRED), part.form(0, part.samples).flatten(1)
    assert found is not None
    assert torch.equal(torch.isfinite(found.norms), torch.isfinite(G).all(1))
    strange = found.counts[HUNDRED.count + 2 :], count_plainly(G, HUNDRED)[HUNDRED.count + 2 :]
    assert torch.equal(*strange)


def test_nothing_is_reduced_of_nothing() -> None:
    for shape in ((0, 4, 5), (3, 0, 5)):
        assert Positions(torch.zeros(shape), torch.zeros(shape), torch.Size((5, 5)), 1.0).reduce([], HUNDRED) is None


@pytest.mark.usefixtures("level")
def test_shares_of_several_threads_add_up_in_sums_over_all(monkeypatch: pytest.MonkeyPatch) -> None:
    b, a, directions = make_tokens("many vectors and a rest", torch.float32)
    alone = dense.reduce_positions(b, a, 1.0, directions, HUNDRED)
    monkeypatch.setattr(dense, "ALONE", 1)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    shared = dense.reduce_positions(b, a, 1.0, directions, HUNDRED)
    torch.set_num_threads(before)
    assert torch.equal(alone.counts, shared.counts)
    assert torch.equal(alone.norms, shared.norms)
    assert torch.equal(alone.dots, shared.dots)


@pytest.fixture
def by_channels(monkeypatch: pytest.MonkeyPatch):
    """Three threads that share output channels, however few."""
    monkeypatch.setattr(dense, "ALONE", 1)
    monkeypatch.setattr(dense, "CHANNELS", 2)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("level", "by_channels")
@pytest.mark.parametrize("dtype", WIDE, ids=str)
@pytest.mark.parametrize("name", TOKENS)
def test_threads_that_share_channels_leave_none_out(name: str, dtype: torch.dtype) -> None:
    b, a, directions = make_tokens(name, dtype)
    assert_right(dense.reduce_positions(b, a, 0.5, directions, HUNDRED), form(b, a, 0.5), directions, HUNDRED, dtype)


@pytest.mark.usefixtures("level", "by_channels")
@pytest.mark.parametrize("name", SHAPES)
def test_threads_that_share_channels_of_a_convolution(name: str) -> None:
    part, directions = make_patches(name, torch.float32)
    part.left = 0.02 * torch.randn_like(part.left)
    twin = Patches(part.left.double(), part.image.double(), part.geometry, part.groups, part.shape, part.scale)
    found = part.reduce(directions, HUNDRED)
    assert found is not None
    assert_right(found, twin.form(0, part.samples).flatten(1), directions, HUNDRED, torch.float32)


def test_tokens_that_do_not_fit_are_refused_before_a_kernel_reads_them() -> None:
    b, a, directions = make_tokens("one vector", torch.float32)
    with pytest.raises(ValueError, match="do not fit"):
        dense.reduce_positions(b, a[:, :-1], 1.0, [], None)
    with pytest.raises(ValueError, match="do not fit"):
        dense.reduce_positions(b, a, 1.0, [directions[0][:-1]], None)
    assert convolving.PADDING >= 16  # lanes of the widest vector


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("dtype", WIDE, ids=str)
@pytest.mark.parametrize("size", [1e-4, 0.003, 0.03, 0.3, 30])
@pytest.mark.parametrize("bins", [HUNDRED, Bins(-0.4, 3.6, 100), Bins(-0.1, 0.1, 6), Bins(-1, 2, 10)], ids=str)
def test_counts_where_few_or_many_lie_around_zero(bins: Bins, size: float, dtype: torch.dtype) -> None:
    """Next to zero, within the eight bins around it, spread, outside: each has a way of its own, and they take turns."""
    torch.manual_seed(5)
    G = size * torch.randn(7, 5003, dtype=dtype) * torch.linspace(0, 1, 5003, dtype=dtype)
    G[2, :40], G[3, 5], G[3, 6], G[4, -1] = 0.0, -0.0, float("nan"), float("inf")
    found = reduce_block(G, None, 1.0, bins)
    assert torch.equal(found.counts, count_plainly(G, bins))
    b, a = G[:5, None, :60].contiguous(), torch.ones(5, 1, 37, dtype=dtype)  # one position: products are the numbers
    found = dense.reduce_positions(b, a, 1.0, [], bins)
    assert torch.equal(found.counts, 37 * count_plainly(b[:, 0], bins))


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("around", [(), (1, 1), (2, 0), (0, 3)])
@pytest.mark.parametrize("space", [(7,), (40,), (5, 3), (16, 33), (2, 3, 4)])
@pytest.mark.parametrize("channels", [1, 3, 16, 50])
def test_channels_are_moved_behind_space_with_zeros_around(
    channels: int, space: tuple[int, ...], around: tuple[int, ...]
) -> None:
    image, groups = torch.randn(2, 2 * channels, *space), 2
    every = around * len(space)
    found = convolving.move_channels(image, groups, every)
    padded = functional.pad(image, [size for k in range(len(every) - 2, -1, -2) for size in every[k : k + 2]])
    expected = padded.unflatten(1, (groups, -1)).movedim(2, -1).flatten()
    assert torch.equal(found[: len(expected)], expected)
    assert not found[len(expected) :].any()


@pytest.mark.usefixtures("level")
def test_borrowed_memory_has_zeros_around_images_of_every_shape() -> None:
    """What one shape leaves there must not show around the images of another."""
    cases = [
        ((4, 6), (1, 1, 1, 1)),
        ((6, 4), (1, 1, 1, 1)),
        ((4, 6), (0, 2, 0, 2)),
        ((4, 6), ()),
        ((3, 3), (2, 2, 2, 2)),
    ]
    for space, around in [*cases, *cases[:1] * 2, *reversed(cases)]:
        image = torch.full((2, 4, *space), torch.nan)
        alone = convolving.move_channels(image, 2, around)
        borrowed = convolving.move_channels(image, 2, around, borrowed=True)
        assert torch.equal(borrowed.isnan(), alone.isnan())
        image = torch.randn(2, 4, *space)
        borrowed = convolving.move_channels(image, 2, around, borrowed=True)
        assert torch.equal(borrowed, convolving.move_channels(image, 2, around))


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kernel", [(3, 3), (1, 1), (2, 2), (5, 5), (3,), (2, 3, 3)], ids=str)
def test_directions_with_kernels_of_any_size_are_moved(kernel: tuple[int, ...], dtype: torch.dtype) -> None:
    """Rows shorter than a vector are turned at once too, and the last is not read beyond what there is."""
    torch.manual_seed(0)
    for rows, channels in ((1, 16), (3, 16), (2, 33), (5, 64), (1, 5), (4, 128)):
        shape = (rows, channels, *kernel)
        directions = [torch.randn(shape, dtype=dtype) for _ in range(2)]
        moved = convolving.move_directions(directions, shape, dtype)
        assert moved is not None
        truth = [direction.flatten(2).transpose(1, 2).reshape(-1) for direction in directions]
        size = directions[0].numel()
        assert torch.equal(moved[: 2 * size], torch.cat(truth))
        assert not moved[2 * size :].any()

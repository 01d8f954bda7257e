"""The native kernels at every instruction set that this processor has: one pass over blocks, and convolutions that walk over
what is not zero. Counts are those of the plain path to the bit, values those of float64.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cockpit_core
from cockpit_core.kernels import Bins, Counts, Spec, count_values, door, native
from cockpit_core.kernels.native import columns, convolving, counting, dense, reducing
from cockpit_core.layers.conv import Patches
from cockpit_core.layers.scratch import Scratch
from tests.core.kernels.cases import (
    AWAY_FROM_ZERO,
    DEFAULT,
    DTYPES,
    NARROW,
    SINGLE,
    ZERO_INSIDE_A_BIN,
    Case,
    find_differences,
    make_cases,
)
from tests.training import linear

LEVELS = native.list_levels()
WIDE = (torch.float32, torch.float64)
BINS = [spec.gradient for spec in (DEFAULT, NARROW, AWAY_FROM_ZERO, ZERO_INSIDE_A_BIN, SINGLE)]
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for module in (reducing, convolving, dense, counting, columns):
        monkeypatch.setattr(module, "find_library", lambda: native.open_level(request.param))
    return request.param


def test_the_library_was_built_for_this_machine() -> None:
    """What is skipped without it would otherwise be skipped without a word."""
    if native.name_library() is None or importlib.util.find_spec("ziglang") is None:
        pytest.skip("nobody builds it for this platform")
    assert LEVELS, "run: python hatch_build.py"


def count_plainly(values: Tensor, bins: Bins) -> Tensor:
    counts = Counts.zeros(Spec(bins))
    count_values(values, None, Spec(bins), counts, path="plain")
    assert counts.table1d is not None
    return counts.table1d


def make_blocks(dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    torch.manual_seed(0)
    for rows, width in ((7, 1000), (3, 5), (1, 1), (5, 4099), (40, 33), (1, 17), (0, 4), (4, 0)):
        yield f"{rows} x {width}", 0.01 * torch.randn(rows, width, dtype=dtype)
    yield "spread", torch.randn(6, 700, dtype=dtype)
    yield "zeros", torch.zeros(3, 100, dtype=dtype)
    yield "signed zeros", -torch.zeros(3, 100, dtype=dtype)
    yield "subnormal", (torch.randn(3, 100, dtype=torch.float64) * 1e-42).to(dtype)
    yield "large", torch.randn(3, 100, dtype=dtype) * 1e18
    edges = torch.from_numpy(Bins(-2, 2, 100).edges)
    yield "edges", torch.cat([edges, edges / 2, -edges]).to(dtype)[None].repeat(2, 1)
    yield "rows apart", (0.01 * torch.randn(6, 90, dtype=dtype))[::2, 10:77]


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("dtype", WIDE, ids=str)
def test_one_pass_over_a_block_gives_norms_projections_and_counts(dtype: torch.dtype) -> None:
    for name, block in make_blocks(dtype):
        for number in (0, 1, 2):
            directions = torch.randn(number, block.shape[1], dtype=dtype) if number else None
            for bins in BINS if number == 2 else BINS[:1]:
                found = reducing.reduce_block(block, directions, 3.0, bins)
                G = (block * 3.0).double()
                assert torch.equal(found.counts, count_plainly(block * 3.0, bins)), (name, bins)
                torch.testing.assert_close(found.norms, G.square().sum(1), rtol=TOLERANCE[dtype], atol=1e-80, msg=name)
                if directions is not None:
                    least = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps * block.shape[1]
                    close = TOLERANCE[dtype] * G.abs() @ directions.double().abs().T + least
                    assert ((found.dots[:, :number] - G @ directions.double().T).abs() <= close).all(), name
        assert reducing.reduce_block(block, None, 1.0, None).counts is None


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("dtype", WIDE, ids=str)
def test_a_block_with_nan_and_infinity_counts_them_apart(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    block = 0.01 * torch.randn(4, 333, dtype=dtype)
    block[0, 0], block[1, 7], block[2, 332], block[3, 100] = float("nan"), float("inf"), -float("inf"), 3e4
    found = reducing.reduce_block(block, torch.ones(1, 333, dtype=dtype), 1.0, Bins(-2, 2, 100))
    assert torch.equal(found.counts, count_plainly(block, Bins(-2, 2, 100)))
    assert found.counts[-3:].tolist() == [1, 1, 1]
    assert found.norms.isfinite().tolist() == [False, False, False, True]
    assert found.dots[0, 0].isnan()
    assert found.dots[1:3, 0].tolist() == [float("inf"), -float("inf")]


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_counting_gives_the_plain_counts(dtype: torch.dtype) -> None:
    assert [line for case in make_cases(dtype) for line in find_differences(case, "native")] == []


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("scale", [1e-3, 0.02, 0.1, 3.0])
def test_near_sorted_and_dense_rows_give_the_plain_counts(scale: float) -> None:
    """Long rows, of which the kernel counts some at once, bisects some and goes through the others."""
    torch.manual_seed(3)
    b, a = scale * torch.randn(6, 40), torch.randn(6, 1500).relu()
    a[1], a[2, 3:], b[3, ::2], a[4, 7], b[5, 1] = -a[1], 0, 0, float("inf"), float("nan")
    for dtype in DTYPES:
        case = Case(f"{scale}", b.to(dtype), a.to(dtype), torch.randn(40, 1500).to(dtype), DEFAULT)
        assert find_differences(case, "native") == []


SHAPES = {
    # name: (samples, channels, rows, groups, (kernel, stride, dilation), space)
    "three by three": (3, 4, 6, 1, ((3, 3), (1, 1), (1, 1)), (9, 8)),
    "groups, stride and holes": (2, 4, 6, 2, ((5, 3), (2, 1), (1, 2)), (13, 11)),
    "one dimension with holes": (2, 3, 2, 1, ((3,), (2,), (2,)), (15,)),
    "one dimension": (3, 70, 4, 1, ((3,), (1,), (1,)), (19,)),
    "three dimensions": (2, 17, 4, 1, ((3, 2, 3), (1, 2, 1), (2, 1, 1)), (7, 6, 5)),
    "wide": (2, 96, 8, 1, ((3, 3), (1, 1), (1, 1)), (8, 8)),
    "wider than all registers": (2, 300, 3, 1, ((2, 3), (1, 1), (1, 1)), (8, 8)),
    "depthwise": (2, 5, 5, 5, ((5, 5), (1, 1), (1, 1)), (8, 8)),
    "seven by seven": (2, 7, 3, 1, ((7, 7), (2, 2), (1, 1)), (18, 18)),
    "pointwise": (2, 33, 5, 1, ((1, 1), (2, 2), (1, 1)), (6, 6)),
}


def make_patches(name: str, dtype: torch.dtype) -> tuple[Patches, list[Tensor]]:
    torch.manual_seed(2)
    samples, channels, rows, groups, geometry, space = SHAPES[name]
    sizes = zip(space, *geometry, strict=True)
    out = [(size - hole * (width - 1) - 1) // step + 1 for size, width, step, hole in sizes]
    left = 0.02 * torch.randn(samples, rows, *out, dtype=dtype) * (torch.rand(samples, rows, *out) < 0.2)
    left[0, 0] = 0
    image = torch.randn(samples, channels, *space, dtype=dtype)
    shape = torch.Size((rows, channels // groups, *geometry[0]))
    return Patches(left, image, geometry, groups, shape, 4.0), [torch.randn(shape, dtype=dtype) for _ in range(2)]


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("dtype", WIDE, ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_a_convolution_walks_over_nonzero_output_gradients(name: str, dtype: torch.dtype) -> None:
    part, directions = make_patches(name, dtype)
    twin = Patches(part.left.double(), part.image.double(), part.geometry, part.groups, part.shape, part.scale)
    G = twin.form(0, part.samples, Scratch()).flatten(1)
    along = torch.stack([direction.double().flatten() for direction in directions])
    for number in (0, 1, 2):
        found = part.reduce(directions[:number], Bins(-2, 2, 100))
        assert found is not None
        torch.testing.assert_close(found.norms, G.square().sum(1), rtol=TOLERANCE[dtype], atol=0)
        close = 10 * TOLERANCE[dtype] * G.norm(dim=1)[:, None] * along.norm(dim=1)
        assert ((found.dots - G @ along.T).abs() <= close)[:, :number].all()
        assert_counts_but_for_edges(found.counts, G, Bins(-2, 2, 100))
        for k in range(number):
            assert ((part.project(directions[k]) - G @ along[k]).abs() <= close[:, k]).all()
    squares, truth = part.squares(), G.square().sum(0).view(part.shape)
    assert squares is not None
    torch.testing.assert_close(squares.double(), truth, rtol=0, atol=TOLERANCE[dtype] * float(truth.max()))


def assert_counts_but_for_edges(counts: Tensor | None, G: Tensor, bins: Bins) -> None:
    """Sums are rounded in another order than a product's: what lies within that of an edge may be its neighbour's."""
    assert counts is not None
    assert int(counts.sum()) == G.numel()
    nonzero = G[G != 0].numpy().ravel()
    distance = np.abs(nonzero[:, None] - bins.edges).min(axis=1)
    close = int((distance < 1e-5 * np.abs(nonzero).max()).sum())
    moved = int((counts - count_plainly(G, bins)).abs().sum())
    assert moved <= 2 * close, f"{moved} moved, {close} lie next to an edge"


@pytest.mark.usefixtures("level")
def test_what_is_exactly_zero_is_counted_whatever_the_bins() -> None:
    part, _ = make_patches("three by three", torch.float64)
    for bins in BINS:
        found = part.reduce([], bins)
        assert found is not None
        assert_counts_but_for_edges(found.counts, part.form(0, part.samples).flatten(1), bins)


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("where", ["image", "left"])
@pytest.mark.parametrize("what", [float("nan"), float("inf"), -float("inf")])
def test_skipped_zeros_do_not_hide_what_is_not_finite(where: str, what: float) -> None:
    """Story: 0 * inf is NaN; whoever skips the zeros finds a finite gradient. So the dense way is taken."""
    part, directions = make_patches("three by three", torch.float32)
    part.left[1] = 0
    getattr(part, where)[1].view(-1)[5] = what
    sides = part.left, part.image, part.geometry, part.groups, tuple(part.shape), part.scale
    assert convolving.reduce_convolution(*sides, directions, Bins(-2, 2, 100)) is None
    squares = part.squares()
    truth = part.form(0, part.samples).square().sum(0)
    assert squares is None or torch.equal(torch.isfinite(squares), torch.isfinite(truth))


def test_squares_of_tiny_gradients_do_not_vanish() -> None:
    part, _ = make_patches("three by three", torch.float32)
    part.left *= 2.0**-70
    part.scale = 2.0**20
    truth = part.form(0, part.samples).square().sum(0)
    assert float(truth.max()) > 0
    torch.testing.assert_close(part.squares(), truth, rtol=0, atol=1e-5 * float(truth.max()))


@pytest.mark.usefixtures("level")
def test_shares_of_several_threads_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(3)
    block, directions = 0.01 * torch.randn(5, 700), torch.randn(2, 700)
    part, along = make_patches("wide", torch.float32)
    alone = reducing.reduce_block(block, directions, 1.0, Bins(-2, 2, 100)), part.reduce(along, Bins(-2, 2, 100))
    wide = reducing.reduce_block(block[:1], directions, 1.0, Bins(-2, 2, 100))
    monkeypatch.setattr(reducing, "ALONE", 1)
    monkeypatch.setattr(convolving, "ALONE", 1)
    shared = reducing.reduce_block(block, directions, 1.0, Bins(-2, 2, 100)), part.reduce(along, Bins(-2, 2, 100))
    pairs = [
        *zip(alone, shared, strict=True),
        (wide, reducing.reduce_block(block[:1], directions, 1.0, Bins(-2, 2, 100))),
    ]
    for one, several in pairs:
        assert one is not None
        assert several is not None
        assert torch.equal(one.counts, several.counts)
        torch.testing.assert_close(one.norms, several.norms)
        torch.testing.assert_close(one.dots, several.dots)


def test_a_missing_or_foreign_library_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "FOLDER", tmp_path)
    assert native.list_levels() == ()
    (tmp_path / str(native.name_library())).write_text("not a library")
    assert native.list_levels() == ()
    with pytest.raises(RuntimeError, match="were not built"):
        native.open_level.__wrapped__("avx2")


def test_names_of_libraries_are_those_that_the_build_writes() -> None:
    spec = importlib.util.spec_from_file_location("hatch_build", Path(__file__).parents[3] / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    machines = [("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64"), ("win32", "AMD64")]
    assert [native.name_library(*machine) for machine in machines] == list(hook.PLATFORMS)
    assert hook.name_library() == native.name_library()
    assert native.name_library("linux", "riscv64") is None
    assert native.name_library("emscripten", "wasm32") is None
    for name, (_, levels) in hook.PLATFORMS.items():
        assert tuple(levels) == native.LEVELS[name.split("-")[0]]
    assert sys.platform not in ("linux", "darwin", "win32") or native.name_library() is None or LEVELS


def test_a_tracked_run_is_the_same_with_and_without_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In double precision and behind a ReLU and a pooling, where convolutions are walked over."""
    walked = []
    reduce = Patches.reduce
    monkeypatch.setattr(Patches, "reduce", lambda *a: walked.append(reduce(*a)) or walked[-1])
    runs = []
    for library in (native.find_library(), None):
        for module in (reducing, convolving, counting, door):
            monkeypatch.setattr(module, "find_library", lambda library=library: library)
        runs.append(train_a_little(tmp_path / f"{library is None}"))
    assert any(found is not None for found in walked)
    ours, plainly = runs
    for name in ("GradNorm", "NormTest", "InnerTest", "OrthoTest", "Alpha"):
        np.testing.assert_allclose(ours.scalars(name)[1], plainly.scalars(name)[1], rtol=1e-9, err_msg=name)
    for step in range(3):
        one, other = ours.histogram("GradHist1d", step), plainly.histogram("GradHist1d", step)
        assert np.abs(one.counts.astype(int) - other.counts.astype(int)).sum() <= 2


def train_a_little(logdir: Path) -> cockpit_core.RunData:
    torch.manual_seed(0)
    blocks = [
        nn.Conv2d(3, 6, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(6, 8, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
    ]
    model = nn.Sequential(*blocks, nn.Flatten(), nn.Linear(32, 4)).double()
    loss_fn, optimizer = nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1)
    config = linear("economy")
    with cockpit_core.track(model, loss_fn, optimizer, logdir, config=config, on_error="raise") as run:
        for _ in range(3):
            optimizer.zero_grad()
            loss_fn(model(torch.randn(12, 3, 13, 13, dtype=torch.float64)), torch.arange(12) % 4).backward()
            optimizer.step()
    return run.data


def test_what_does_not_fit_is_refused_before_a_kernel_reads_it() -> None:
    """Story: a rule of a user's own gave gradients of another shape; torch would raise, a pointer reads on."""
    with pytest.raises(ValueError, match="cannot be projected"):
        reducing.reduce_block(torch.zeros(2, 30), torch.zeros(1, 20), 1.0, None)
    with pytest.raises(TypeError, match="one dtype"):
        reducing.reduce_blocks([torch.zeros(2, 30).double()], [[torch.zeros(30)]], [1.0], None)
    part, directions = make_patches("three by three", torch.float32)
    part.inner = part.inner[..., :-1]
    with pytest.raises(ValueError, match="do not fit"):
        part.reduce(directions, None)


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("dtype", WIDE, ids=str)
@pytest.mark.parametrize("zeros", [0.0, 0.5, 1.0])
def test_factors_that_stay_around_zero_are_counted_right_behind_one_that_does_not(
    dtype: torch.dtype, zeros: float
) -> None:
    """Of a classifier's samples one factor is near -1, the others are small: the ways to count them take turns."""
    torch.manual_seed(0)
    for width in (784, 100, 17, 3):
        a = torch.rand(9, width, dtype=dtype) - 0.3
        a[torch.rand(9, width) < zeros] = 0.0
        b = torch.cat([-torch.rand(9, 1, dtype=dtype) - 0.5, 0.1 * torch.randn(9, 20, dtype=dtype)], 1)
        b[:, 7], b[3, 4] = 0.0, 3.0
        for bins in BINS:
            assert bins is not None
            table = torch.zeros(bins.count + 5, dtype=torch.int64)
            counting.count_outer(b, a, None, bins, table)
            products = (b[:, :, None] * a[:, None, :]).reshape(9, -1)
            assert torch.equal(table, count_plainly(products, bins)), (width, bins)

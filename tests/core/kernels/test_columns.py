"""Columns that cross a convolution by their nonzero entries alone, against float64 products of everything with everything, at
every instruction set that this processor has.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from cockpit_core.kernels import native, threads
from cockpit_core.kernels.native import columns as kernels
from cockpit_core.kernels.native.columns import Image, Squared, gather_columns, send_columns, square_columns, sum_column

LEVELS = native.list_levels()
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12}
CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


@pytest.fixture(params=LEVELS, autouse=True)
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "find_library", lambda: native.open_level(request.param))


@dataclass
class Case:
    """A convolution, what a ReLU and a pooling let through, and columns that arrive there."""

    number: int
    samples: int
    channels: int
    rows: int
    space: tuple[int, ...]
    kernel: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    groups: int = 1
    dtype: torch.dtype = torch.float64

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        dims = len(self.space)
        self.image = torch.randn(self.samples, self.channels, *self.space, dtype=self.dtype)
        self.weight = torch.randn(self.rows, self.channels // self.groups, *[self.kernel] * dims, dtype=self.dtype)
        self.out = tuple(self.convolve(self.image, self.weight).shape[2:])
        positions = torch.Size(self.out).numel()
        places = max(1, positions // 2)  # some positions twice, some not at all, some cut off
        where = torch.randint(-1, positions, (self.samples, places, self.rows), dtype=torch.int32)
        self.where: Tensor | None = where
        self.columns = torch.randn(self.number, self.samples, self.rows, places, dtype=self.dtype)
        self.signs = torch.randint(0, 2, (self.number, self.samples)).to(self.dtype) * 2 - 1

    @property
    def geometry(self):
        dims = len(self.space)
        return (self.kernel,) * dims, (self.stride,) * dims, (self.dilation,) * dims

    def convolve(self, image: Tensor, weight: Tensor) -> Tensor:
        convolution = CONVOLUTIONS[len(self.space)]
        return convolution(image, weight, None, self.stride, self.padding, self.dilation, self.groups)

    def spread(self) -> Tensor:
        """The columns at every position of the convolution's output, in float64."""
        if self.where is None:
            return self.columns.double()
        flat = torch.zeros(self.number, self.samples, self.rows, torch.Size(self.out).numel(), dtype=torch.float64)
        where = self.where.permute(0, 2, 1).long()
        for column, to in zip(self.columns.double(), flat, strict=True):
            to.scatter_add_(2, where.clamp_min(0), torch.where(where >= 0, column, 0.0))
        return flat.view(*flat.shape[:3], *self.out)

    def square(self) -> Squared | None:
        padded = F.pad(self.image, [self.padding] * (2 * len(self.space)))
        image = Image.of(padded, self.groups)
        return square_columns(self.columns, self.where, image, self.geometry, self.out, self.signs)

    def send(self) -> Tensor | None:
        assert self.where is not None
        padding = (self.padding,) * len(self.space)
        return send_columns(self.columns, self.where, self.weight, self.geometry, padding, self.space, self.out)

    def true_squares(self) -> tuple[Tensor, Tensor]:
        """[*weight] and [samples], by one gradient for each column and sample."""
        weight, total = self.weight.double().requires_grad_(), torch.zeros(self.weight.shape, dtype=torch.float64)
        norms = torch.zeros(self.samples, dtype=torch.float64)
        for column, signs in zip(self.spread(), self.signs, strict=True):
            for n in range(self.samples):
                given = self.convolve(self.image[n : n + 1].double(), weight)
                (found,) = torch.autograd.grad(given, weight, column[n : n + 1])
                total += signs[n] * found**2
                norms[n] += signs[n] * (found**2).sum()
        return total, norms

    def true_columns(self) -> Tensor:
        image = self.image.double().requires_grad_()
        given = self.convolve(image, self.weight.double())
        sent = [torch.autograd.grad(given, image, column, retain_graph=True)[0] for column in self.spread()]
        return torch.stack(sent)


SHAPES = {
    "short rows": Case(9, 3, 3, 5, (12, 12), 5),
    "long rows": Case(9, 2, 35, 3, (6, 5), 3, padding=1),
    "one column": Case(1, 2, 35, 3, (6, 5), 3, padding=1),
    "two columns": Case(2, 2, 70, 4, (5, 5), 3),
    "more columns than fit": Case(23, 2, 4, 3, (5, 5), 2),
    "stride and dilation": Case(4, 2, 6, 3, (11, 9), 3, stride=2, padding=2, dilation=2),
    "a stride that leaves a rest": Case(3, 2, 2, 3, (8, 8), 3, stride=2),
    "pointwise": Case(5, 2, 17, 3, (4, 4), 1),
    "line": Case(3, 2, 5, 4, (19,), 4, padding=3),
    "volume": Case(3, 2, 2, 3, (4, 5, 4), 2, stride=2, padding=1),
    "single": Case(6, 1, 1, 1, (1, 1), 1),
}


def close(found: Tensor, truth: Tensor, dtype: torch.dtype) -> None:
    limit = TOLERANCE[dtype] * max(float(truth.abs().max()), 1e-300)
    torch.testing.assert_close(found.double(), truth, rtol=0, atol=limit)


def with_dtype(case: Case, dtype: torch.dtype) -> Case:
    return Case(**{**vars_of(case), "dtype": dtype})


def vars_of(case: Case) -> dict:
    return {name: getattr(case, name) for name in Case.__dataclass_fields__}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_squares_and_the_way_back_are_those_of_everything(name: str, dtype: torch.dtype) -> None:
    case = with_dtype(SHAPES[name], dtype)
    found, (squares, norms) = case.square(), case.true_squares()
    assert found is not None
    close(found.squares, squares, dtype)
    close(found.norms, norms, dtype)
    close(found.sums, case.spread().flatten(3).sum(3), dtype)
    sent = case.send()
    assert sent is not None
    close(sent, case.true_columns(), dtype)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_gradients_and_outputs_at_some_places(name: str, dtype: torch.dtype) -> None:
    case = with_dtype(SHAPES[name], dtype)
    image = Image.of(F.pad(case.image, [case.padding] * (2 * len(case.space))), 1)
    same = Image.channels_last(case.image.movedim(1, -1), (case.padding,) * len(case.space))
    assert torch.equal(image.buffer, same.buffer)
    weight = case.weight.double().requires_grad_()
    given = case.convolve(case.image.double(), weight)
    (truth,) = torch.autograd.grad(given, weight, case.spread()[0], retain_graph=True)
    found = sum_column(case.columns[0], case.where, image, case.geometry, case.out)
    assert found is not None
    close(found[0], truth, dtype)
    close(found[1], case.spread()[0].flatten(2).sum((0, 2)), dtype)
    start = torch.ones(case.where.shape, dtype=dtype)
    pairs = [(image, case.weight), (same, case.weight)]
    gathered = gather_columns(pairs, case.where, case.geometry, case.out, start)
    chosen = given.detach().flatten(2).mT.gather(1, case.where.long().clamp_min(0))
    close(gathered, 1 + 2 * chosen * (case.where >= 0), dtype)


@pytest.mark.parametrize("name", SHAPES)
def test_columns_at_every_position_need_no_places(name: str) -> None:
    case = with_dtype(SHAPES[name], torch.float64)
    squares, _ = case.true_squares()
    case.columns, case.where = case.spread(), None
    found = case.square()
    assert found is not None
    close(found.squares, squares, torch.float64)


def test_threads_share_the_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads.torch, "get_num_threads", lambda: 3)
    monkeypatch.setattr(kernels, "ALONE", 1)
    case = Case(3, 7, 4, 3, (6, 6), 3)
    found, sent, (squares, norms) = case.square(), case.send(), case.true_squares()
    assert found is not None and sent is not None
    close(found.squares, squares, torch.float64)
    close(found.norms, norms, torch.float64)
    close(sent, case.true_columns(), torch.float64)


def test_groups_look_at_their_own_channels() -> None:
    case = Case(4, 2, 6, 4, (7, 7), 3, padding=1, groups=2)
    found = case.square()
    assert found is not None
    close(found.squares, case.true_squares()[0], torch.float64)


def test_numbers_may_lie_anywhere_in_memory() -> None:
    case = Case(5, 3, 4, 6, (8, 8), 3)
    squares, sent = case.true_squares()[0], case.true_columns()
    innermost = case.columns.permute(1, 3, 2, 0).contiguous().permute(3, 0, 2, 1)
    apart = torch.stack([case.columns, case.columns], -1).flatten(3)[..., ::2]
    for columns in (innermost, apart):
        case.columns = columns
        found, back = case.square(), case.send()
        assert found is not None and back is not None
        close(found.squares, squares, torch.float64)
        close(back, sent, torch.float64)
    assert back.stride(0) == 1  # as the next convolution reads it fastest


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_is_not_skipped(value: float) -> None:
    case = Case(3, 2, 4, 3, (6, 6), 3)
    case.image[1, 2, 3, 3] = value
    assert case.square() is None
    case = Case(3, 2, 4, 3, (6, 6), 3)
    case.weight[1, 2, 0, 0] = value
    assert case.send() is None
    case = Case(3, 2, 4, 3, (6, 6), 3)
    case.columns[1, 1, 2, 3], case.where[1, 3, 2] = value, 5
    found, sent = case.square(), case.send()
    assert found is not None and sent is not None
    assert torch.equal(torch.isfinite(found.squares), torch.isfinite(case.true_squares()[0]))
    assert torch.equal(torch.isfinite(sent), torch.isfinite(case.true_columns()))
    case.where[1, 3, 2] = -1  # cut off by a ReLU, which chooses and does not multiply
    assert bool(torch.isfinite(case.send()).all())


def test_zeros_and_subnormal_numbers() -> None:
    case = Case(3, 2, 4, 3, (6, 6), 3)
    case.columns.zero_()
    found, sent = case.square(), case.send()
    assert found is not None and not found.squares.any() and not sent.any()
    case = Case(3, 2, 4, 3, (6, 6), 3, dtype=torch.float32)
    case.columns *= 1e-41
    case.weight *= 2.0**100
    close(case.send(), case.true_columns(), torch.float32)


def test_nothing_to_do_and_what_does_not_fit() -> None:
    case = Case(3, 2, 4, 3, (6, 6), 3)
    whole = case.columns
    case.columns = whole[:0]
    assert case.square() is None
    assert case.send() is None
    case.columns = whole[:, :, :, 1:]
    for call in (case.square, case.send):
        with pytest.raises(ValueError, match="do not fit"):
            call()
    case.columns, case.out = whole, (7, 7)
    with pytest.raises(ValueError, match="do not fit"):
        case.square()

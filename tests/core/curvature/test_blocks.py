"""Convolutions that columns cross in one stroke: the same diagonals as the full matrices', and no stroke where paths meet."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cockpit_core.curvature import Limits, Point, blocks, columns, diagonal
from cockpit_core.kernels import native
from cockpit_core.kernels.native import columns as kernels
from tests.core.curvature.points import BATCH, CLASSES, LOSSES, flat, full_ggn, full_hessian, point_of

pytestmark = pytest.mark.skipif(not native.list_levels(), reason="blocks are crossed by native kernels")


class Around(nn.Module):
    """A path around the second convolution, or out of the middle of a block."""

    def __init__(self, inside: bool):
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)
        self.last, self.inside = nn.Linear(3 * 9, CLASSES), inside

    def forward(self, x: Tensor) -> Tensor:
        before = torch.relu(self.first(x))
        hidden = F.max_pool2d(before, 2)
        beside = F.avg_pool2d(before, 2) if self.inside else hidden
        pooled = F.max_pool2d(torch.relu(self.second(hidden)), 3, 1, 1)
        return self.last((pooled + beside).flatten(1))


def _frozen(*numbers: int) -> nn.Module:
    model = _chain()
    for number in numbers:
        model[number].requires_grad_(False)
    return model


def _chain(**options: bool) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(**options), nn.MaxPool2d(3, 2, 1),
        nn.Conv2d(3, 4, 2, bias=False), nn.MaxPool2d(2, 1), nn.ReLU(**options),
        nn.Flatten(), nn.Linear(4, CLASSES),
    )  # fmt: skip


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "chain": (_chain, (2, 6, 6), 2),
    "in place": (lambda: _chain(inplace=True), (2, 6, 6), 2),
    "a weight that is not trained": (lambda: _frozen(3), (2, 6, 6), 1),
    "nothing below is trained": (lambda: _frozen(0), (2, 6, 6), 1),
    "stride and dilation": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 3, 2, stride=2, dilation=2), nn.MaxPool2d(2), nn.Tanh(),
            nn.Conv2d(3, 3, 2, padding=1), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(3, CLASSES),
        ),
        (2, 9, 9), 2,
    ),
    "volume": (
        lambda: nn.Sequential(
            nn.Conv3d(1, 2, 2), nn.ReLU(), nn.MaxPool3d(2), nn.Conv3d(2, 3, 1), nn.ReLU(), nn.MaxPool3d(2),
            nn.Flatten(), nn.Linear(3, CLASSES),
        ),
        (1, 5, 5, 5), 2,
    ),
    "groups": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, groups=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, CLASSES)
        ),
        (2, 6, 6), 0,
    ),
    "two poolings": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 3, 3), nn.MaxPool2d(2), nn.ReLU(), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(),
            nn.Linear(3, CLASSES),
        ),
        (2, 6, 6), 1,
    ),
    "a path around": (lambda: Around(False), (2, 6, 6), 1),
    "a path out of the middle": (lambda: Around(True), (2, 6, 6), 0),
}  # fmt: skip


def make(name: str, loss: str = "cross entropy") -> Point:
    build, shape, _ = NETWORKS[name]
    torch.manual_seed(1)
    model = build().double()
    return point_of(model, model(torch.randn(BATCH, *shape, dtype=torch.float64)), LOSSES[loss])


@pytest.fixture
def crossed(monkeypatch: pytest.MonkeyPatch) -> list[blocks.Block]:
    """Every block whose squares were taken."""
    found: list[blocks.Block] = []
    square = blocks.Block.square

    def noted(self, *arguments):
        found.append(self)
        return square(self, *arguments)

    monkeypatch.setattr(blocks.Block, "square", noted)
    return found


@pytest.mark.parametrize("loss", ["cross entropy", "not convex"])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_diagonal_is_that_of_the_full_matrix(name: str, loss: str, crossed: list[blocks.Block]) -> None:
    point = make(name, loss)
    found = diagonal(point, "hessian")
    assert found.method == "columns", found.note
    assert len({id(block) for block in crossed}) == NETWORKS[name][2]
    torch.testing.assert_close(flat(found.values), full_hessian(point).diagonal(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", NETWORKS)
def test_gauss_newton_without_the_library_is_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    point = make(name)
    with_library = flat(diagonal(point, "ggn").values)
    monkeypatch.setattr(kernels, "find_library", lambda: None)
    torch.testing.assert_close(flat(diagonal(point, "ggn").values), with_library, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(with_library, full_ggn(point).diagonal(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("budget", [1, 2**27])
@pytest.mark.parametrize("at_once", [1, 100])
def test_a_small_budget_has_no_room_for_blocks(
    budget: int, at_once: int, crossed: list[blocks.Block], monkeypatch: pytest.MonkeyPatch
) -> None:
    point = make("chain")
    monkeypatch.setattr(columns.Squares, "columns_at_once", at_once)
    found = diagonal(point, "hessian", limits=Limits(memory_budget=budget))
    torch.testing.assert_close(flat(found.values), full_hessian(point).diagonal(), rtol=1e-9, atol=1e-12)
    passes = CLASSES - 1 if at_once == 1 else 1
    assert len(crossed) == (2 * passes if budget > 1 else 0)


def test_monte_carlo_columns_cross_blocks_too(crossed: list[blocks.Block], monkeypatch: pytest.MonkeyPatch) -> None:
    point = make("chain")
    found = diagonal(point, "ggn_mc", torch.Generator().manual_seed(3))
    assert len(crossed) == 2
    monkeypatch.setattr(kernels, "find_library", lambda: None)
    same = diagonal(point, "ggn_mc", torch.Generator().manual_seed(3))
    torch.testing.assert_close(flat(found.values), flat(same.values), rtol=1e-9, atol=1e-12)
    assert found.trace_errors == pytest.approx(same.trace_errors, rel=1e-9)


@pytest.mark.parametrize("where", ["image", "weight"])
def test_what_is_not_finite_goes_the_dense_way(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever skips zeros does not see that 0 * inf is NaN. Written behind the graph's back, so that the loss is finite."""
    torch.manual_seed(1)
    model, x = _chain().double(), torch.randn(BATCH, 2, 6, 6, dtype=torch.float64)
    point = point_of(model, model(x), LOSSES["cross entropy"])
    if where == "image":
        x.data[2, 1, 5, 5] = float("inf")
    else:
        model[3].weight.data[1, 1, 0, 0] = float("nan")
    values = diagonal(point, "ggn").values
    assert not torch.isfinite(values["0.weight"]).all()
    assert torch.isfinite(values["7.weight"]).all()
    monkeypatch.setattr(kernels, "find_library", lambda: None)
    for name, dense in diagonal(point, "ggn").values.items():
        torch.testing.assert_close(values[name], dense, rtol=1e-9, atol=1e-12, equal_nan=True)

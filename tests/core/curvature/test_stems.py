"""Stems are crossed by hand: products must be those of plain double backward, and nothing else may become a stem."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from cockpit_core.curvature import GGNOperator, HessianOperator, Point
from cockpit_core.curvature.stems import Stemmed, find_stems


class TwoReaders(nn.Module):
    """The convolution's result goes through the ReLU and past it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1)
        self.head = nn.Linear(4 * 36, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = self.stem(x)
        return self.head((z.relu() + z.tanh()).flatten(1))


class Shared(TwoReaders):
    """One convolution, used on the data and on its mirror image."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head((self.stem(x).tanh() + self.stem(x.flip(-1)).relu()).flatten(1))


class TwoStems(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(2, 4, 5, padding=2, bias=False)
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Linear(4 * 9, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((self.pool(self.left(x).relu()) * self.pool(self.right(x)).relu()).flatten(1))


def chain(*stem: nn.Module, features: int) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*stem, nn.Flatten(), nn.Linear(features, 8), nn.Tanh(), nn.Linear(8, 3))


IMAGE, LINE, VOLUME = (2, 6, 6), (2, 12), (2, 4, 4, 4)
CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "convolution alone": (chain(nn.Conv2d(2, 4, 3), nn.Tanh(), features=64), IMAGE, 1),
    "relu": (chain(nn.Conv2d(2, 4, 3), nn.ReLU(), features=64), IMAGE, 1),
    "relu in place": (chain(nn.Conv2d(2, 4, 3), nn.ReLU(inplace=True), features=64), IMAGE, 1),
    "relu, pooling": (chain(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(2), features=16), IMAGE, 1),
    "pooling that overlaps": (
        chain(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1), features=16),
        IMAGE,
        1,
    ),
    "pooling, relu, pooling": (
        chain(nn.Conv2d(2, 4, 3), nn.MaxPool2d(2), nn.ReLU(), nn.MaxPool2d(2), features=4),
        IMAGE,
        1,
    ),
    "stride, dilation, groups, no bias": (
        chain(nn.Conv2d(2, 4, 2, stride=2, dilation=2, groups=2, bias=False), nn.ReLU(), features=16),
        IMAGE,
        1,
    ),
    "transposed": (chain(nn.ConvTranspose2d(2, 4, 3, stride=2, output_padding=1), nn.ReLU(), features=784), IMAGE, 1),
    "one dimension": (chain(nn.Conv1d(2, 4, 3), nn.ReLU(), nn.MaxPool1d(2), features=20), LINE, 1),
    "three dimensions": (chain(nn.Conv3d(2, 4, 3), nn.ReLU(), features=32), VOLUME, 1),
    "batch norm": (chain(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), features=64), IMAGE, 1),
    "no convolution": (chain(nn.Flatten(), nn.Linear(72, 8), nn.ReLU(), features=8), IMAGE, 0),
    "read twice": (TwoReaders, IMAGE, 1),
    "two stems": (TwoStems, IMAGE, 2),
    "shared": (Shared, IMAGE, 0),
}


def make_point(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> Point:
    torch.manual_seed(0)
    model = make().double()
    inputs, labels = torch.randn(5, *shape, dtype=torch.float64), torch.randint(0, 3, (5,))
    outputs = model(inputs)

    def loss_of(outputs: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, labels)

    return Point(loss_of(outputs), dict(model.named_parameters()), 5, outputs, loss_of)


def random_direction(parameters: list[Tensor], *lead: int) -> list[Tensor]:
    return [torch.randn(*lead, *p.shape, dtype=p.dtype) for p in parameters]


def assert_same(found: list[Tensor], expected: list[Tensor]) -> None:
    for ours, true in zip(found, expected, strict=True):
        assert not ours.requires_grad
        torch.testing.assert_close(ours, true, rtol=1e-10, atol=1e-12)


def double_backward(point: Point, vector: list[Tensor]) -> list[Tensor]:
    parameters = list(point.trainable.values())
    gradients = torch.autograd.grad(point.loss, parameters, create_graph=True)
    inner = sum((g * v).sum() for g, v in zip(gradients, vector, strict=True))
    return list(torch.autograd.grad(inner, parameters, retain_graph=True, materialize_grads=True))


@pytest.mark.parametrize(("make", "shape", "stems"), CASES.values(), ids=CASES)
def test_products_are_those_of_double_backward(
    make: Callable[[], nn.Module], shape: tuple[int, ...], stems: int
) -> None:
    point = make_point(make, shape)
    operator = HessianOperator(point)
    assert len(find_stems(point.loss, operator.parameters)) == stems
    vectors = random_direction(operator.parameters, 3)
    expected = [double_backward(point, [v[k] for v in vectors]) for k in range(3)]
    for k in range(3):
        assert_same(operator.matvec([v[k] for v in vectors]), expected[k])
    assert_same(operator.matmat(vectors), [torch.stack(parts) for parts in zip(*expected, strict=True)])


@pytest.mark.parametrize(("make", "shape", "stems"), CASES.values(), ids=CASES)
def test_gauss_newton_with_stems_is_symmetric_and_right(
    make: Callable[[], nn.Module], shape: tuple[int, ...], stems: int
) -> None:
    """``u . G v`` with the Jacobian formed row by row."""
    point = make_point(make, shape)
    operator = GGNOperator(point)
    assert point.outputs is not None
    rows = []
    for element in point.outputs.flatten():
        found = torch.autograd.grad(element, operator.parameters, retain_graph=True, materialize_grads=True)
        rows.append(torch.cat([f.flatten() for f in found]))
    jacobian = torch.stack(rows)
    assert point.loss_of is not None
    curvature = torch.autograd.functional.hessian(point.loss_of, point.outputs.detach())
    curvature = curvature.reshape(len(jacobian), len(jacobian))
    vector = random_direction(operator.parameters)
    expected = jacobian.T @ (curvature @ (jacobian @ torch.cat([v.flatten() for v in vector])))
    product = operator.matvec(vector)
    torch.testing.assert_close(torch.cat([p.flatten() for p in product]), expected, rtol=1e-9, atol=1e-11)
    assert stems == len(Stemmed(point.outputs, operator.parameters).stems)


@pytest.mark.parametrize(("frozen", "stems"), [("0.weight", 0), ("0.bias", 1)])
def test_frozen_parameters(frozen: str, stems: int) -> None:
    """A frozen weight leaves nothing to cross; a frozen bias is not asked for."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)).double()
    model.get_parameter(frozen).requires_grad_(False)
    inputs, labels = torch.randn(5, 2, 6, 6, dtype=torch.float64), torch.randint(0, 3, (5,))
    point = Point(nn.functional.cross_entropy(model(inputs), labels), dict(model.named_parameters()), 5)
    operator = HessianOperator(point)
    vector = random_direction(operator.parameters)
    assert_same(operator.matvec(vector), double_backward(point, vector))
    assert len(find_stems(point.loss, operator.parameters)) == stems


def test_inputs_that_require_a_gradient_are_no_data() -> None:
    """Then the gradient with respect to the input is wanted, and the convolution stays with autograd."""
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    loss = model(torch.randn(5, 2, 6, 6, requires_grad=True)).square().mean()
    assert find_stems(loss, list(model.parameters())) == []


def test_a_weight_that_nobody_asks_for_stays_with_autograd() -> None:
    point = make_point(*CASES["relu, pooling"][:2])
    _, *others = point.trainable.values()
    assert find_stems(point.loss, others) == []


def test_closing_lets_go_of_data_and_graph() -> None:
    point = make_point(*CASES["relu, pooling"][:2])
    ways = Stemmed(point.loss, list(point.trainable.values()))
    ways.close()
    assert not ways.stems
    assert not ways.inputs

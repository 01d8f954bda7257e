"""Small networks and losses at which curvature is asked for, and the full matrices they are compared with."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cockpit_core.curvature import Point

BATCH = 5
CLASSES = 3


class Residual(nn.Module):
    """Two branches that meet again, so that no rule for chains applies."""

    def __init__(self, activation: Callable[[Tensor], Tensor]):
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, CLASSES)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.activation(self.first(x))
        return self.last(hidden + self.activation(self.inner(hidden)))


class Tied(nn.Module):
    """One weight used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.square, self.last = nn.Linear(4, 4), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.square(torch.relu(self.square(x)))))


class Scaled(nn.Module):
    """Bare parameters that are added and multiplied, and a matrix that is used without a transpose."""

    def __init__(self) -> None:
        super().__init__()
        self.shift, self.scale = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(1, 6))
        self.matrix, self.last = nn.Parameter(torch.randn(4, 6)), nn.Linear(6, CLASSES, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu((x + self.shift) @ self.matrix) * self.scale)


def _cnn(inplace: bool) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, groups=2),
        nn.BatchNorm2d(4).eval(),
        nn.ReLU(inplace=inplace),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 3, 2, stride=2),
        nn.LeakyReLU(inplace=inplace),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(12, CLASSES),
    )


def _flat(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(BATCH, *shape, dtype=torch.float64)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, CLASSES)), _flat(4)),
    "tanh mlp": (lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, CLASSES)), _flat(4)),
    "in-place elu": (lambda: nn.Sequential(nn.Linear(4, 6), nn.ELU(inplace=True), nn.Linear(6, CLASSES)), _flat(4)),
    "cnn": (lambda: _cnn(False), _flat(2, 8, 8)),
    "in-place cnn": (lambda: _cnn(True), _flat(2, 8, 8)),
    "sigmoid cnn": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 2, dilation=2), nn.Sigmoid(), nn.Flatten(), nn.Linear(48, CLASSES)),
        _flat(2, 6, 6),
    ),
    "conv1d": (
        lambda: nn.Sequential(
            nn.Conv1d(2, 4, 3, padding=1, dilation=2),
            nn.PReLU(4),
            nn.ConvTranspose1d(4, CLASSES, 2, stride=2),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
        ),
        _flat(2, 8),
    ),
    "conv3d": (
        lambda: nn.Sequential(
            nn.Conv3d(2, 4, 2),
            nn.ReLU(),
            nn.ConvTranspose3d(4, 2, 2, stride=2, groups=2),
            nn.Flatten(),
            nn.Linear(128, 3),
        ),
        _flat(2, 3, 3, 3),
    ),
    "relu residual": (lambda: Residual(torch.relu), _flat(4)),
    "tanh residual": (lambda: Residual(torch.tanh), _flat(4)),
    "gelu residual": (lambda: Residual(F.gelu), _flat(4)),
    "silu residual": (lambda: Residual(F.silu), _flat(4)),
    "softplus residual": (lambda: Residual(F.softplus), _flat(4)),
    "bare parameters": (Scaled, _flat(4)),
    "tokens": (
        lambda: nn.Sequential(
            nn.Embedding(6, 4, padding_idx=0),
            nn.Linear(4, 5),
            nn.ReLU(),
            nn.Linear(5, 3),
            nn.Flatten(),
            nn.Linear(12, 3),
        ),
        lambda: torch.randint(6, (BATCH, 4)),
    ),
}
# Those whose Hessian diagonal is no sum of squares, and those that mix samples.
HARD_NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "layer norm": (
        lambda: nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, CLASSES)),
        _flat(4),
    ),
    "group norm": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 2), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(16, CLASSES)),
        _flat(2, 3, 3),
    ),
    "batch norm": (
        lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, CLASSES)),
        _flat(4),
    ),
    "tied": (Tied, _flat(4)),
}

_labels = torch.tensor([0, 2, 1, 1, 0])
_weights = torch.tensor([0.3, 2.0, 5.0], dtype=torch.float64)
LOSSES: dict[str, Callable[[Tensor], Tensor]] = {
    "cross entropy": lambda o: F.cross_entropy(o, _labels),
    "summed": lambda o: F.cross_entropy(o, _labels, reduction="sum"),
    "class weights": lambda o: F.cross_entropy(o, _labels, weight=_weights),
    "ignore_index": lambda o: F.cross_entropy(o, _labels, ignore_index=1),
    "label smoothing": lambda o: F.cross_entropy(o, _labels, label_smoothing=0.2),
    "weights and smoothing": lambda o: F.cross_entropy(o, _labels, weight=_weights, label_smoothing=0.2),
    "squared error": lambda o: F.mse_loss(o, torch.ones_like(o)),
    "binary": lambda o: F.binary_cross_entropy_with_logits(o, torch.full_like(o, 0.3)),
    "norm of the output": lambda o: o.square().sum(1).sqrt().mean(),
    "not convex": lambda o: torch.sin(o).sum(1).mean(),
    "linear": lambda o: o.mean(),
}


def make_point(network: str, loss: str = "cross entropy") -> Point:
    build, draw = (NETWORKS | HARD_NETWORKS)[network]
    model = build().double()
    outputs = model(draw())
    return point_of(model, outputs, LOSSES[loss])


def point_of(model: nn.Module, outputs: Tensor, loss_of: Callable[[Tensor], Tensor], batch: int = BATCH) -> Point:
    return Point(loss_of(outputs), dict(model.named_parameters()), batch, outputs, loss_of)


def _rows(vector: Tensor, inputs: list[Tensor]) -> Tensor:
    if not vector.requires_grad:
        return torch.zeros(vector.numel(), sum(i.numel() for i in inputs), dtype=vector.dtype)
    grads = [
        torch.autograd.grad(v, inputs, retain_graph=True, create_graph=True, allow_unused=True, materialize_grads=True)
        for v in vector
    ]
    return torch.stack([torch.cat([g.reshape(-1) for g in row]) for row in grads])


def full_hessian(point: Point) -> Tensor:
    parameters = list(point.trainable.values())
    gradient = _rows(point.loss.reshape(1), parameters)[0]
    return _rows(gradient, parameters).detach()


def full_ggn(point: Point) -> Tensor:
    assert point.outputs is not None
    assert point.loss_of is not None
    jacobian = _rows(point.outputs.reshape(-1), list(point.trainable.values())).detach()
    leaf = point.outputs.detach().clone().requires_grad_()
    middle = _rows(_rows(point.loss_of(leaf).reshape(1), [leaf])[0], [leaf]).detach()
    return jacobian.T @ middle @ jacobian


def flat(values: dict[str, Tensor]) -> Tensor:
    return torch.cat([v.reshape(-1) for v in values.values()])

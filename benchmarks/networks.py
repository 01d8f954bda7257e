"""The networks of the paper's Figure 6 (sizes as in DeepOBS) and a small transformer, on random data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from benchmarks.measure import Batch, Losses, Training

MakeBatch = Callable[[int], Batch]


@dataclass(frozen=True)
class Network:
    """How to build it, what a batch looks like, and how many parameters it must have: a check of our copy of it.

    losses: as for ``Training``, where the loss is not the cross-entropy of the outputs.
    skipped: configurations that take minutes per step.
    """

    name: str
    build: Callable[[], nn.Module]
    make_batch: MakeBatch
    batch_size: int
    parameters: int
    losses: Losses | None = None
    skipped: tuple[str, ...] = ()

    def make(self) -> nn.Module:
        torch.manual_seed(0)
        model = self.build()
        count = sum(p.numel() for p in model.parameters())
        assert count == self.parameters, f"{self.name} has {count} parameters, not {self.parameters}"
        return model

    def train(self, optimizer: str = "SGD", learning_rate: float = 1e-3) -> Training:
        return Training(self.make(), optimizer, learning_rate, self.losses)

    def batch(self, size: int | None = None) -> Batch:
        return self.make_batch(size or self.batch_size)


def classify(input_shape: tuple[int, ...], classes: int, *label_shape: int) -> MakeBatch:
    return lambda size: (torch.rand(size, *input_shape), torch.randint(0, classes, (size, *label_shape)))


def logistic_regression() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))


def make_dense(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inner, outer in pairwise(sizes):
        layers += [nn.Linear(inner, outer), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), *make_dense(784, 1000, 500, 100, 10))


def two_conv_two_dense() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(3136, 1024), nn.ReLU(), nn.Linear(1024, 10),
    )  # fmt: skip


def three_conv_three_dense() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 64, 5), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1),
        nn.Conv2d(64, 96, 3), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1),
        nn.Conv2d(96, 128, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1),
        nn.Flatten(), nn.Linear(1152, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10),
    )  # fmt: skip


def all_cnn_c() -> nn.Module:
    def block(inner: int, outer: int, kernel: int = 3, stride: int = 1, padding: int = 1) -> list[nn.Module]:
        return [nn.Conv2d(inner, outer, kernel, stride, padding), nn.ReLU()]

    return nn.Sequential(
        *block(3, 96), *block(96, 96), *block(96, 96, stride=2), *block(96, 192), *block(192, 192),
        *block(192, 192, stride=2), *block(192, 192, padding=0), *block(192, 192, 1, padding=0),
        *block(192, 100, 1, padding=0)[:1], nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip


class SmallTransformer(nn.Module):
    """Two encoder layers over 16 patches of 48 numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(48, 128)
        layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(128, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(inputs)).mean(1))


def tiny() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(18, 10))


TINY = Network("tiny", tiny, classify((2, 5, 5), 10), 8, 228)
"""Tracking a few steps of it compiles all kernels."""
PAPER = {
    network.name: network
    for network in (
        Network("mnist_logreg", logistic_regression, classify((1, 28, 28), 10), 128, 7_850),
        Network("mnist_mlp", mlp, classify((1, 28, 28), 10), 128, 1_336_610),
        Network("fmnist_2c2d", two_conv_two_dense, classify((1, 28, 28), 10), 128, 3_274_634),
        Network("cifar10_3c3d", three_conv_three_dense, classify((3, 32, 32), 10), 128, 895_210),
        # A column of the Hessian for each of 100 classes: once, within "full", is enough.
        Network("cifar100_allcnnc", all_cnn_c, classify((3, 32, 32), 100), 32, 1_387_108, skipped=("business, SGD",)),
        Network("transformer", SmallTransformer, classify((16, 48), 10), 64, 272_522),
    )
}

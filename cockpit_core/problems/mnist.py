"""Handwritten digits and pieces of clothing, 28 x 28 pixels in grey: four networks."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

from cockpit_core import datasets
from cockpit_core.problems.base import Data, Problem, split_images
from cockpit_core.problems.initialisation import fill, truncated_normal


def mnist_logreg() -> Problem:
    return Problem(
        name="mnist_logreg",
        description="Logistic regression on MNIST, all parameters start at zero: a convex problem.",
        make_model=make_logistic_regression,
        make_loss=nn.CrossEntropyLoss,
        make_data=load_mnist,
        parameters=7_850,
        batch_size=128,
        epochs=50,
    )


def mnist_mlp() -> Problem:
    return make_mlp_problem("mnist_mlp", "MNIST", load_mnist)


def fmnist_mlp() -> Problem:
    return make_mlp_problem("fmnist_mlp", "Fashion-MNIST", load_fashion)


def make_mlp_problem(name: str, data: str, load: Callable[[Path | None], Data]) -> Problem:
    return Problem(
        name=name,
        description=f"Four dense layers (1000, 500, 100, 10) with ReLU on {data}.",
        make_model=make_mlp,
        make_loss=nn.CrossEntropyLoss,
        make_data=load,
        parameters=1_336_610,
        batch_size=128,
        epochs=100,
    )


def fmnist_2c2d() -> Problem:
    return Problem(
        name="fmnist_2c2d",
        description="Two convolutions (32 and 64, 5 x 5) and two dense layers on Fashion-MNIST.",
        make_model=make_2c2d,
        make_loss=nn.CrossEntropyLoss,
        make_data=load_fashion,
        parameters=3_274_634,
        batch_size=128,
        epochs=100,
    )


def make_logistic_regression() -> nn.Module:
    return fill(nn.Sequential(nn.Flatten(), nn.Linear(784, 10)), nn.init.zeros_)


def make_mlp(activation: type[nn.Module] = nn.ReLU) -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten()]
    for inner, outer in pairwise((784, 1000, 500, 100, 10)):
        layers += [nn.Linear(inner, outer), activation()]
    return truncated_normal(nn.Sequential(*layers[:-1]), 0.03, bias=0.0)


def make_2c2d() -> nn.Module:
    layers: list[nn.Module] = []
    for inner, outer in pairwise((1, 32, 64)):
        layers += [nn.Conv2d(inner, outer, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Flatten(), nn.Linear(3136, 1024), nn.ReLU(), nn.Linear(1024, 10)]
    return truncated_normal(nn.Sequential(*layers), 0.05, bias=0.05)


def load_mnist(folder: Path | None) -> Data:
    return split_images(datasets.mnist(folder), scale)


def load_fashion(folder: Path | None) -> Data:
    return split_images(datasets.fashion_mnist(folder), scale)


def scale(images: Tensor) -> Tensor:
    """Bytes [B, 28, 28] to numbers from 0 to 1. [B, 1, 28, 28]"""
    return images.unsqueeze(1).to(torch.float32) / 255

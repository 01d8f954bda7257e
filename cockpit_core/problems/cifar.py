"""Small photographs in colour: the network with three convolutions and three dense layers, and All-CNN-C."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from cockpit_core import datasets
from cockpit_core.problems.base import Data, Prepare, Problem, split_images
from cockpit_core.problems.initialisation import fill

# Mean and deviation of each colour over the training pictures, as published with the benchmark.
CIFAR10 = (0.49139968, 0.48215841, 0.44653091), (0.24703223, 0.24348513, 0.26158784)
CIFAR100 = (0.50707516, 0.48654887, 0.44091784), (0.26733429, 0.25643846, 0.27615047)
SVHN = (0.43768206, 0.44376972, 0.47280434), (0.19803014, 0.20101564, 0.19703615)


def cifar10_3c3d() -> Problem:
    return make_3c3d_problem("cifar10_3c3d", "CIFAR-10, cropped and mirrored at random", load_cifar10)


def svhn_3c3d() -> Problem:
    return make_3c3d_problem("svhn_3c3d", "SVHN (house numbers)", load_svhn)


def make_3c3d_problem(name: str, data: str, load: Callable[[Path | None], Data]) -> Problem:
    return Problem(
        name=name,
        description=f"Three convolutions and three dense layers on {data}; without weight decay.",
        make_model=make_3c3d,
        make_loss=nn.CrossEntropyLoss,
        make_data=load,
        parameters=895_210,
        batch_size=128,
        epochs=100,
    )


def cifar100_allcnnc() -> Problem:
    return Problem(
        name="cifar100_allcnnc",
        description="All-CNN-C with dropout on CIFAR-100; the data must be in your folder.",
        make_model=make_all_cnn_c,
        make_loss=nn.CrossEntropyLoss,
        make_data=load_cifar100,
        parameters=1_387_108,
        batch_size=256,
        epochs=350,
    )


def make_3c3d(activation: type[nn.Module] = nn.ReLU) -> nn.Module:
    """28, 12 and 6 pixels are halved by windows of 3 that may reach over the right and lower border."""

    def halve() -> nn.Module:
        return nn.MaxPool2d(3, 2, ceil_mode=True)

    model = nn.Sequential(
        nn.Conv2d(3, 64, 5), activation(), halve(),
        nn.Conv2d(64, 96, 3), activation(), halve(),
        nn.Conv2d(96, 128, 3, padding=1), activation(), halve(),
        nn.Flatten(), nn.Linear(1152, 512), activation(), nn.Linear(512, 256), activation(), nn.Linear(256, 10),
    )  # fmt: skip
    return fill(model, nn.init.xavier_normal_, dense=nn.init.xavier_uniform_)


def make_all_cnn_c(classes: int = 100) -> nn.Module:
    """Strided 3 x 3 convolutions see one more row below and one more column to the right, none above and left."""

    def same(inner: int, outer: int) -> list[nn.Module]:
        return [nn.Conv2d(inner, outer, 3, padding=1), nn.ReLU()]

    def halve(channels: int) -> list[nn.Module]:
        return [nn.ZeroPad2d((0, 1, 0, 1)), nn.Conv2d(channels, channels, 3, 2), nn.ReLU()]

    model = nn.Sequential(
        nn.Dropout(0.2), *same(3, 96), *same(96, 96), *halve(96),
        nn.Dropout(0.5), *same(96, 192), *same(192, 192), *halve(192),
        nn.Dropout(0.5), nn.Conv2d(192, 192, 3), nn.ReLU(), nn.Conv2d(192, 192, 1), nn.ReLU(),
        nn.Conv2d(192, classes, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip
    return fill(model, nn.init.xavier_normal_, bias=0.1)


def load_cifar10(folder: Path | None) -> Data:
    return split_images(datasets.cifar10(folder), standardize(*CIFAR10), crop_and_mirror)


def load_cifar100(folder: Path | None) -> Data:
    return split_images(datasets.cifar100(folder), standardize(*CIFAR100), crop_and_mirror)


def load_svhn(folder: Path | None) -> Data:
    return split_images(datasets.svhn(folder), standardize(*SVHN))


def scale(images: Tensor) -> Tensor:
    """Bytes [B, 32, 32, 3] to numbers from 0 to 1. [B, 3, 32, 32]"""
    return images.permute(0, 3, 1, 2).to(torch.float32) / 255


def standardize(mean: Sequence[float], deviation: Sequence[float]) -> Prepare:
    center, width = (torch.tensor(values).view(3, 1, 1) for values in (mean, deviation))
    return lambda images: (scale(images) - center) / width


def crop_and_mirror(images: Tensor, generator: torch.Generator) -> Tensor:
    """A window of 32 x 32 in the picture with two pixels of zeros around it, half of them mirrored. [B, 3, 32, 32]"""
    count, _, height, width = images.shape
    padded = nn.functional.pad(images, (2, 2, 2, 2))
    down, right = torch.randint(0, 5, (2, count, 1), generator=generator)
    mirrored = torch.rand(count, 1, generator=generator) < 0.5
    columns = torch.arange(width).expand(count, width)
    columns = torch.where(mirrored, width - 1 - columns, columns) + right  # [B, 32]
    rows = torch.arange(height) + down  # [B, 32]
    sample = torch.arange(count).view(-1, 1, 1)
    return padded.permute(0, 2, 3, 1)[sample, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()

"""A variational autoencoder of 28 x 28 pictures, with eight latent variables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from cockpit_core import datasets
from cockpit_core.problems.base import Data, Problem, split_images
from cockpit_core.problems.initialisation import fill
from cockpit_core.problems.mnist import scale

LATENT = 8


def mnist_vae() -> Problem:
    return make_problem("mnist_vae", "MNIST", datasets.mnist)


def fmnist_vae() -> Problem:
    return make_problem("fmnist_vae", "Fashion-MNIST", datasets.fashion_mnist)


def make_problem(name: str, data: str, read: Callable[[Path | None], datasets.Images]) -> Problem:
    def load(folder: Path | None) -> Data:
        return split_images(read(folder), scale, labels=False)

    return Problem(
        name=name,
        description=f"A variational autoencoder on {data}: three convolutions, eight latent variables, three back.",
        make_model=Autoencoder,
        make_loss=EvidenceBound,
        make_data=load,
        parameters=10_151_489,
        batch_size=64,
        epochs=50,
        metric="loss",
    )


class Autoencoder(nn.Module):
    """Gives back the picture, the means and the logarithms of the deviations of the latent variables."""

    def __init__(self) -> None:
        super().__init__()
        same = nn.ZeroPad2d((1, 2, 1, 2))  # a 4 x 4 kernel needs three rows to keep the size: one before, two behind
        crop = nn.ZeroPad2d((-1, -2, -1, -2))
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 64, 4, 2, padding=1), nn.LeakyReLU(0.3), nn.Dropout(0.2),
            nn.Conv2d(64, 64, 4, 2, padding=1), nn.LeakyReLU(0.3), nn.Dropout(0.2),
            same, nn.Conv2d(64, 64, 4), nn.LeakyReLU(0.3), nn.Dropout(0.2), nn.Flatten(),
        )  # fmt: skip
        self.mean, self.spread = nn.Linear(7 * 7 * 64, LATENT), nn.Linear(7 * 7 * 64, LATENT)
        self.decoder = nn.Sequential(
            nn.Linear(LATENT, 24), nn.LeakyReLU(0.3), nn.Linear(24, 49), nn.LeakyReLU(0.3), nn.Unflatten(1, (1, 7, 7)),
            nn.ConvTranspose2d(1, 64, 4, 2, padding=1), nn.ReLU(), nn.Dropout(0.2),
            nn.ConvTranspose2d(64, 64, 4), crop, nn.ReLU(), nn.Dropout(0.2),
            nn.ConvTranspose2d(64, 64, 4), crop, nn.ReLU(), nn.Dropout(0.2),
            nn.Flatten(), nn.Linear(14 * 14 * 64, 784), nn.Sigmoid(), nn.Unflatten(1, (1, 28, 28)),
        )  # fmt: skip
        fill(self, nn.init.xavier_uniform_)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        features = self.encoder(images)
        mean, deviation = self.mean(features), 0.5 * self.spread(features)
        latent = mean + torch.randn_like(deviation) * deviation.exp()
        return self.decoder(latent), mean, deviation


class EvidenceBound(nn.Module):
    """Squared error of the picture plus the divergence of the latent variables from a standard normal.

    ``reduction`` is "mean" over the batch, "sum", or "none" for one value per picture, as in torch's own losses.
    """

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, outputs: tuple[Tensor, Tensor, Tensor], images: Tensor) -> Tensor:
        picture, mean, deviation = outputs
        error = (picture - images).square().flatten(1).sum(1)
        divergence = -0.5 * (1 + 2 * deviation - mean.square() - (2 * deviation).exp()).sum(1)
        losses = error + divergence  # [B]
        if self.reduction == "none":
            return losses
        return losses.mean() if self.reduction == "mean" else losses.sum()

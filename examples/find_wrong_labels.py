"""Find wrong labels: flip 5 % of the labels of the digits, train, and look at the samples with the largest gradients.

Usage: python examples/find_wrong_labels.py [--epochs 10] [--seeds 3] [--logdir runs/wrong_labels]
Prints, epoch by epoch, how many of the 5 % of the samples with the largest gradients are flipped ones.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import cockpit_core
from cockpit_core.quantities import HardSamples, Loss

SHARE = 0.05


def flip_labels(labels: torch.Tensor, seed: int) -> tuple[torch.Tensor, np.ndarray]:
    """Other labels for a part of the samples, drawn at random, and which samples those are."""
    generator = torch.Generator().manual_seed(seed)
    flipped = torch.randperm(len(labels), generator=generator)[: round(SHARE * len(labels))]
    labels = labels.clone()
    labels[flipped] = (labels[flipped] + torch.randint(1, 10, (len(flipped),), generator=generator)) % 10
    return labels, flipped.numpy()


def train(logdir: Path, seed: int, epochs: int) -> Iterator[tuple[float, float]]:
    """After each epoch: which share of the worst 5 %, and of the worst 50, was flipped."""
    torch.manual_seed(seed)
    pixels, labels = map(torch.tensor, load_digits(return_X_y=True))
    pixels, (labels, flipped) = pixels.float() / 16, flip_labels(labels, seed)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    loss_fn, optimizer = nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1)
    config = [Loss(), HardSamples(top=len(flipped))]
    with cockpit_core.track(model, loss_fn, optimizer, logdir, config=config, schedule=1) as run:
        for _ in range(epochs):
            for chosen in torch.randperm(len(labels)).split(64):
                run.batch(ids=chosen)
                optimizer.zero_grad()
                loss_fn(model(pixels[chosen]), labels[chosen]).backward()
                optimizer.step()
            worst = run.data.histogram("HardSamples").counts[:, 0].astype(int)
            found = np.isin(worst, flipped)
            yield float(found.mean()), float(found[:50].mean())


def main() -> None:
    parser = argparse.ArgumentParser(description="Find wrong labels by the largest gradients.")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--logdir", type=Path, default=Path("runs/wrong_labels"))
    options = parser.parse_args()
    for seed in range(options.seeds):
        for epoch, (worst, few) in enumerate(train(options.logdir / f"seed{seed}", seed, options.epochs), 1):
            print(f"seed {seed} epoch {epoch}: {worst:.0%} of the worst 5 %, {few:.0%} of the worst 50 were flipped")


if __name__ == "__main__":
    main()

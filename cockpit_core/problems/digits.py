"""The handwritten digits of scikit-learn: a problem of seconds that needs no download."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from cockpit_core.problems.base import Data, Problem, Split, hold_out


def digits_mlp() -> Problem:
    return Problem(
        name="digits_mlp",
        description="Three dense layers (100, 50, 10) on scikit-learn's 1,797 digits; needs no download.",
        make_model=make_model,
        make_loss=nn.CrossEntropyLoss,
        make_data=load_digits,
        parameters=12_060,
        batch_size=64,
        epochs=30,
    )


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 50), nn.ReLU(), nn.Linear(50, 10))


def load_digits(folder: Path | None) -> Data:
    """Numbers from 0 to 1; 300 of 1,797 for the test, a fifth of the rest for validation."""
    from sklearn import datasets

    pixels, labels = datasets.load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    inputs, targets = torch.tensor(pixels / 16, dtype=torch.float32)[order], torch.tensor(labels).long()[order]
    train, valid = hold_out(inputs[300:], targets[300:])
    return Data(Split(*train), Split(*valid), Split(inputs[:300], targets[:300]))

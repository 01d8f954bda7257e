"""BackPACK as a second opinion, on the chains of modules that it supports."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from cockpit_core.curvature import diagonal
from tests.core.curvature.points import BATCH, LOSSES, point_of


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh, nn.Sigmoid])
def test_the_diagonal_agrees_with_backpack(activation) -> None:
    from backpack import backpack, extend
    from backpack.extensions import DiagHessian

    model = nn.Sequential(
        nn.Conv2d(2, 3, 2), activation(), nn.Flatten(), nn.Linear(27, 4), activation(), nn.Linear(4, 3)
    )
    model, inputs = model.double(), torch.randn(BATCH, 2, 4, 4, dtype=torch.float64)
    found = diagonal(point_of(model, model(inputs), LOSSES["cross entropy"]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its hooks warn under current torch
        loss_fn = extend(nn.CrossEntropyLoss())
        loss = loss_fn(extend(model)(inputs), torch.tensor([0, 2, 1, 1, 0]))
        with backpack(DiagHessian()):
            loss.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found.values[name], parameter.diag_h, rtol=1e-9, atol=1e-12)

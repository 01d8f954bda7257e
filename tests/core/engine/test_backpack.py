"""The layer rules as a BackPACK extension, against BackPACK's own extensions."""

from __future__ import annotations

import warnings

import torch
from backpack import backpack, extend
from backpack.extensions import BatchL2Grad, SumGradSquared
from torch import nn

from cockpit_core.backpack import GradientStatistics
from cockpit_core.kernels import Bins, Spec

B = 6


def make_problem() -> tuple[nn.Module, nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(3)
    layers = nn.Sequential(nn.Conv2d(2, 3, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(27, 4)).double()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # BackPACK's extend warns on the first layer under torch 2.13
        model, loss_fn = extend(layers), extend(nn.CrossEntropyLoss())
    return model, loss_fn, torch.randn(B, 2, 6, 6).double(), torch.randint(0, 4, (B,))


def test_statistics_equal_those_of_backpack() -> None:
    model, loss_fn, inputs, labels = make_problem()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with backpack(BatchL2Grad(), SumGradSquared(), GradientStatistics(norms=True, squares=True)):
            loss_fn(model(inputs), labels).backward()
    for p in model.parameters():
        torch.testing.assert_close(p.gradient_statistics.norms, p.batch_l2 * B**2)
        torch.testing.assert_close(p.gradient_statistics.squares, p.sum_grad_squared * B**2)


def test_histograms_count_every_element_of_every_sample() -> None:
    model, loss_fn, inputs, labels = make_problem()
    spec = Spec(gradient=Bins(-2, 2, 10), joint=(Bins(-1, 1, 4), Bins(-2, 2, 5)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with backpack(GradientStatistics(spec=spec)):
            loss_fn(model(inputs), labels).backward()
    for p in model.parameters():
        counts = p.gradient_statistics.counts
        assert counts.counts1d.sum() == counts.counts2d.sum() == B * p.numel()

"""Healthy runs: settings drawn at random around those that train well, and awkward ones that look odd and are not."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from benchmarks.diagnosis.job import Job
from benchmarks.diagnosis.programs import PROGRAMS, Program, Settings, with_optimizer


def draw(program: Program, seed: int) -> Settings:
    """Another optimizer, width, depth, activation, batch, schedule, clipping, decay, dropout; the rate within 2 of good."""
    r = random.Random(f"{program.name} {seed}")
    s = with_optimizer(program, r.choice(program.others))
    return replace(
        s,
        lr=s.lr * 2 ** r.uniform(-1, 0.7),
        batch=r.choice([16, 32, 32, 64, 128]),
        width=r.choice([0.5, 1, 1, 2]),
        depth=r.choice([0, 0, 0, 1, 2]),
        activation=r.choice(["relu", "relu", "tanh", "gelu", "silu", "elu"]),
        schedule=r.choice(["constant", "constant", "cosine", "warmup", "steps"]),
        clip=r.choice([0, 0, 0, 1.0, 5.0]),
        weight_decay=r.choice([0, 0, 1e-4, 1e-3]),
        dropout=r.choice([0, 0, 0.1, 0.3]),
        init=r.choice(["default", "default", "kaiming", "xavier", "orthogonal"]),
    )


def zero_head(job: Job) -> None:
    last = [m for m in job.model.modules() if isinstance(m, nn.Linear)][-1]
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)


def frozen_backbone(job: Job) -> None:
    parameters = list(job.model.parameters())
    for p in parameters[: len(parameters) // 2]:
        p.requires_grad_(False)
    job.remake_optimizer()


def full_batch(job: Job) -> None:
    job.settings.batch = 500
    for name in ("x", "y"):
        setattr(job.data, name, getattr(job.data, name)[:500])


def edge_rate(job: Job) -> None:
    job.settings.lr *= 3 if job.settings.optimizer in ("sgd", "momentum") else 2


def noisy_labels(job: Job) -> None:
    """Irreducible noise: a third of the labels, or as much noise as signal. Validation is without it."""
    g, y = torch.Generator().manual_seed(5), job.data.y
    if y.is_floating_point():
        job.data.y = y + torch.randn(y.shape, generator=g)
    else:
        hit = torch.rand(y.shape, generator=g) < 0.3
        job.data.y = torch.where(hit, y.flatten()[torch.randperm(y.numel(), generator=g)].view_as(y), y)


def heavy_tails(job: Job) -> None:
    """Noise with rare large values in the targets; validation is without it."""
    g, y = torch.Generator().manual_seed(6), job.data.y
    job.data.y = y + 0.1 * torch.randn(y.shape, generator=g) / torch.rand(y.shape, generator=g).clamp(0.02)


def fine_tuning(job: Job) -> None:
    """Begins with a network that has been trained already."""
    optimizer = torch.optim.Adam(job.model.parameters(), lr=3e-3)
    g = torch.Generator().manual_seed(7)
    for _ in range(150):
        at = torch.randint(0, len(job.data.x), (64,), generator=g)
        optimizer.zero_grad()
        job.loss(job.model(job.data.x[at]), job.data.y[at]).backward()
        optimizer.step()
    job.model.zero_grad()
    job.settings.lr *= 0.3


def one_sample(job: Job) -> None:
    job.settings.batch, job.settings.accumulate = 16, 16


def resumed(job: Job) -> None:
    """Closed after a third of the steps, and gone on with in the same log."""
    job.resume_at = job.settings.steps // 3


class Likelihood(nn.Module):
    """Of a Gaussian with a known small spread: a density, so that its negative logarithm falls below zero."""

    def __init__(self, spread: float):
        super().__init__()
        self.spread = spread

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return (0.5 * ((output - target) / self.spread).square() + math.log(self.spread)).mean()


def below_zero(job: Job) -> None:
    job.loss = Likelihood(0.3)


def cosine_to_zero(job: Job) -> None:
    job.settings.schedule = "warmup"


def imbalanced(job: Job) -> None:
    """The first class ten times as often as the others."""
    y = job.data.y
    if y.dim() == 1 and not y.is_floating_point():
        g = torch.Generator().manual_seed(8)
        keep = (y == 0) | (torch.rand(len(y), generator=g) < 0.15)
        job.data.x, job.data.y = job.data.x[keep], y[keep]


def small_inputs(job: Job) -> None:
    """Between 0 and 1, not centred."""
    if job.data.x.is_floating_point() and job.program.kind != "reconstruction":
        low, high = job.data.x.min(), job.data.x.max()
        job.data.x, job.data.valid_x = (job.data.x - low) / (high - low), (job.data.valid_x - low) / (high - low)


AWKWARD: dict[str, Callable[[Job], None]] = {
    f.__name__: f
    for f in (zero_head, frozen_backbone, full_batch, edge_rate, noisy_labels, heavy_tails, fine_tuning, one_sample,
              cosine_to_zero, imbalanced, small_inputs, resumed, below_zero)
}  # fmt: skip
NOISY = ("awkward/noisy_labels", "awkward/heavy_tails")  # cannot be as good as without the noise


def awkward_fits(name: str, program: Program) -> bool:
    if name == "heavy_tails":
        return program.kind == "values"
    if name == "below_zero":
        return program.kind in ("values", "reconstruction")
    if name == "imbalanced":
        return program.kind == "classes"
    if name == "zero_head":
        return program.name not in ("decoder",)
    if name == "one_sample":
        return program.name != "resnet"  # BatchNorm on one sample is a fault
    return not (name == "small_inputs" and program.kind in ("tokens", "reconstruction"))


def names_of_awkward() -> list[tuple[str, str]]:
    return [(program, name) for program in PROGRAMS for name in AWKWARD if awkward_fits(name, PROGRAMS[program])]

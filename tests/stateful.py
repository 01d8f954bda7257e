"""Modules, losses and hooks that keep state, one kind each: whatever runs them once more must leave no trace.

Each maps [B, 5] to [B, 5], and what it keeps changes what it gives: a call that is repeated on the wrong state shows.
"""

from __future__ import annotations

import collections
import itertools
import math
import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

WIDTH = 5
HISTORY: list[float] = []
CALLS = 0


class Plain(nn.Module):
    """No rule of its own: its individual gradients come from running it again."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(WIDTH, WIDTH) * 0.3)

    def map(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.w)

    def forward(self, x: Tensor) -> Tensor:
        return self.map(x)


class KeepsOutput(Plain):
    def forward(self, x: Tensor) -> Tensor:
        self.last = self.map(x)
        return self.last


class AssignsBuffer(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        y = self.map(x)
        self.mean = 0.9 * self.mean + 0.1 * y.detach().mean(0)
        return y - self.mean


class WritesBuffer(AssignsBuffer):
    def forward(self, x: Tensor) -> Tensor:
        y = self.map(x)
        with torch.no_grad():
            self.mean.mul_(0.9).add_(0.1 * y.mean(0))
        return y - self.mean


class WritesAttribute(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.total = torch.zeros(WIDTH, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        y = self.map(x)
        with torch.no_grad():
            self.total.add_(0.1 * y.mean(0))
        return y - self.total.clone()


class Counts(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.map(x) * (1 + 0.1 * math.sin(self.calls))


class CountsInItsClass(Plain):
    calls = 0

    def __init__(self) -> None:
        super().__init__()
        CountsInItsClass.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        CountsInItsClass.calls += 1
        return self.map(x) * (1 + 0.1 * math.sin(CountsInItsClass.calls))


class CountsInGlobals(Plain):
    def __init__(self) -> None:
        super().__init__()
        global CALLS
        CALLS = 0
        HISTORY.clear()

    def forward(self, x: Tensor) -> Tensor:
        global CALLS
        CALLS += 1
        y = self.map(x) * (1 + 0.1 * math.sin(CALLS))
        HISTORY.append(float(y.detach().sum()))
        return y


class Containers(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.recent: collections.deque = collections.deque(maxlen=3)
        self.count: collections.Counter = collections.Counter()
        self.array = np.zeros(3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.map(x)
        self.recent.append(y.detach().mean())
        self.count["calls"] += 1
        self.array += 1
        return y * (1 + 0.01 * sum(self.recent)) * float(1 + 0.01 * self.array[0])


class Running:
    def __init__(self) -> None:
        self.mean, self.seen = 0.0, []


class HoldsObject(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.running = Running()

    def forward(self, x: Tensor) -> Tensor:
        y = self.map(x)
        self.running.mean = 0.9 * self.running.mean + float(y.detach().mean())
        self.running.seen.append(self.running.mean)
        return y * (1 + 0.1 * self.running.mean)


class HoldsIterator(Plain):
    """Cannot be copied: it must not be run again."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = itertools.count()

    def forward(self, x: Tensor) -> Tensor:
        return self.map(x) * (1 + 0.1 * math.sin(next(self.steps)))


class DrawsFromPython(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return self.map(x) * random.random()


class DrawsFromNumpy(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return self.map(x) * float(np.random.rand())


class OwnGenerators(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.torch, self.numpy, self.python = (
            torch.Generator().manual_seed(1),
            np.random.default_rng(1),
            random.Random(1),
        )

    def forward(self, x: Tensor) -> Tensor:
        noise = torch.rand(x.shape, generator=self.torch, dtype=x.dtype) + torch.from_numpy(self.numpy.random(x.shape))
        return self.map(x) * noise * self.python.random()


class Codebook(nn.Module):
    """Vector quantisation: codes follow by moving averages, gradients pass straight through."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("codes", torch.randn(4, WIDTH))
        self.register_buffer("uses", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        z = self.project(x)
        nearest = torch.cdist(z, self.codes).argmin(1)
        chosen = self.codes[nearest]
        with torch.no_grad():
            hot = F.one_hot(nearest, 4).to(z.dtype)
            self.uses.mul_(0.9).add_(0.1 * hot.sum(0))
            self.codes.mul_(0.9).add_(0.1 * (hot.T @ z) / self.uses[:, None])
        return z + (chosen - z).detach()


class KeepsHidden(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.Parameter(torch.randn(WIDTH, WIDTH) * 0.3)
        self.hidden: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        before = 0 if self.hidden is None else self.hidden.detach() @ self.recurrent
        self.hidden = torch.tanh(x @ self.w + before)
        return self.hidden


class MovesTeacher(nn.Module):
    """A momentum encoder that follows in the forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = Plain(), Plain()
        self.teacher.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            for fast, slow in zip(self.student.parameters(), self.teacher.parameters(), strict=True):
                slow.data = 0.9 * slow.data + 0.1 * fast.data
        return self.student(x) + self.teacher(x)


class NormalisesWeight(Plain):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.w.copy_(F.normalize(self.w, dim=1))
        return self.map(x)


class WritesInput(Plain):
    def forward(self, x: Tensor) -> Tensor:
        x.add_(0.1)
        return self.map(x)


class HooksItsOutput(Plain):
    """A hook on a tensor that nothing leads to afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.norms: list[float] = []

    def forward(self, x: Tensor) -> Tensor:
        y = self.map(x)
        if y.requires_grad:
            y.register_hook(lambda gradient: self.norms.append(float(gradient.norm())))
        return y


class NoisyGradient(Plain):
    def forward(self, x: Tensor) -> Tensor:
        y = self.map(x)
        if y.requires_grad:
            y.register_hook(lambda gradient: gradient + 0.01 * torch.randn_like(gradient))
        return y


class CountedBackward(torch.autograd.Function):
    calls = 0

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        CountedBackward.calls += 1
        return gradient * (1 + 0.01 * CountedBackward.calls) + 0.01 * torch.randn_like(gradient)


class OwnBackward(Plain):
    def __init__(self) -> None:
        super().__init__()
        CountedBackward.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        return CountedBackward.apply(self.map(x))


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.inner, x, use_reentrant=False)


def with_hook(module: nn.Module, kind: str, changes: float = 0.0) -> nn.Module:
    """A hook of the user's that counts, and that changes what it sees if asked to."""
    seen = module.seen = [0]

    def changed(value: Tensor | None) -> Tensor | None:
        return None if value is None else value * (1 + changes * seen[0]) + changes * torch.randn_like(value)

    def hook(*args) -> object:
        seen[0] += 1
        if not changes:
            return None
        value = args[1] if kind == "register_full_backward_hook" else args[-1]
        return tuple(changed(v) for v in value) if isinstance(value, tuple) else changed(value)

    getattr(module.weight if kind == "register_hook" else module, kind)(hook)
    return module


def linear() -> nn.Linear:
    return nn.Linear(WIDTH, WIDTH)


KEEPERS = {
    **{kind.__name__: kind for kind in (
        KeepsOutput, AssignsBuffer, WritesBuffer, WritesAttribute, Counts, CountsInItsClass, CountsInGlobals, Containers,
        HoldsObject, HoldsIterator, DrawsFromPython, DrawsFromNumpy, OwnGenerators, Codebook, KeepsHidden, MovesTeacher,
        NormalisesWeight, WritesInput, HooksItsOutput, NoisyGradient, OwnBackward, Checkpointed,
    )},
    "old spectral_norm": lambda: nn.utils.spectral_norm(linear()),
    "new spectral_norm": lambda: nn.utils.parametrizations.spectral_norm(linear()),
    "new weight_norm": lambda: nn.utils.parametrizations.weight_norm(linear()),
    "forward hook": lambda: with_hook(linear(), "register_forward_hook"),
    "forward hook that changes": lambda: with_hook(linear(), "register_forward_hook", 0.1),
    "backward hook": lambda: with_hook(linear(), "register_full_backward_hook"),
    "backward hook that changes": lambda: with_hook(linear(), "register_full_backward_hook", 0.01),
    "backward pre-hook": lambda: with_hook(linear(), "register_full_backward_pre_hook"),
    "hook on a weight": lambda: with_hook(linear(), "register_hook"),
    "hook on a weight that changes": lambda: with_hook(linear(), "register_hook", 0.01),
}  # fmt: skip


class RunningCentre(nn.Module):
    """A loss with a state of its own, that draws random numbers too."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(3))
        self.calls, self.reduction = 0, "mean"

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        self.calls += 1
        self.centre = 0.9 * self.centre + 0.1 * logits.detach().mean(0)
        return F.cross_entropy(logits - self.centre, target, reduction=self.reduction) * (1 + 0.1 * random.random())

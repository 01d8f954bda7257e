"""All that a training leaves behind, to be compared to the bit: values, attributes, optimizer and random states."""

from __future__ import annotations

import collections
import itertools
import math
import random

import numpy as np
import torch
from torch import Tensor, nn

from tests import stateful


class Around(nn.Module):
    """A network of the suite inside a module that keeps something of every kind."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.calls, self.seen = inner, 0, []
        self.running, self.generator = stateful.Running(), torch.Generator().manual_seed(2)
        self.register_buffer("mean", torch.zeros((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        y = self.inner(x)
        self.mean = 0.9 * self.mean + 0.1 * y.detach().double().mean()
        self.running.mean += float(self.mean)
        self.seen.append(y)
        self.seen = self.seen[-2:]
        scale = 1 + 0.1 * math.sin(self.calls) + 0.01 * float(torch.rand((), generator=self.generator))
        return (y - self.mean) * scale * (1 + 0.01 * random.random())


def snapshot(value: object) -> object:
    """Values only, to be compared; None for what has none."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy())
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, np.random.Generator):
        return str(value.bit_generator.state)
    if isinstance(value, random.Random):
        return str(value.getstate())
    if isinstance(value, dict):
        return {str(key): snapshot(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, collections.deque)):
        return [snapshot(item) for item in value]
    if isinstance(value, (stateful.Running, nn.Module)):
        return {k: snapshot(v) for k, v in vars(value).items() if "hook" not in k and k != "_modules"}
    return value if isinstance(value, (int, float, str, bool, itertools.count, type(None))) else None


def everything(*roots: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, object]:
    found: dict[str, object] = {
        f"{type(root).__name__}.{name}": snapshot(module) for root in roots for name, module in root.named_modules()
    }
    found |= {f"gradient {n}": snapshot(p.grad) for root in roots for n, p in root.named_parameters()}
    found |= {"optimizer": [snapshot(dict(state)) for state in optimizer.state.values()]}
    found |= {"torch": torch.get_rng_state(), "numpy": str(np.random.get_state()), "python": str(random.getstate())}
    counters = (
        stateful.CALLS,
        list(stateful.HISTORY),
        stateful.CountsInItsClass.calls,
        stateful.CountedBackward.calls,
    )
    return found | {"counters": snapshot(counters)}


def differences(first: object, second: object, where: str = "") -> list[str]:
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        return [] if torch.equal(first, second) else [where]
    if isinstance(first, dict) and isinstance(second, dict) and first.keys() == second.keys():
        return [d for key in first for d in differences(first[key], second[key], f"{where}/{key}")]
    if isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        return [
            d for k, pair in enumerate(zip(first, second, strict=True)) for d in differences(*pair, f"{where}[{k}]")
        ]
    same = str(first) == str(second) if isinstance(first, itertools.count) else first == second
    return [] if type(first) is type(second) and same else [f"{where}: {first!r} and {second!r}"]

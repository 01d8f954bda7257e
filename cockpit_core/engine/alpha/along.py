"""Does a step run along the gradient? Then the projections that are known serve, and nothing need be kept for it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cockpit_core.foundation import long_sums
from cockpit_core.foundation.sharded import whole

CHUNK = 2**17
"""So many elements are compared at a time: they stay in the cache, and no large memory is taken for the difference."""
LARGE, SAMPLED = 8192, 1024
"""Of larger layers, a few elements show whether it is worth to look at all of them."""
TOGETHER = 2**18
"""So many elements of small layers are looked at on the host, all at once."""


@dataclass
class Layer:
    """The step of one layer, its gradient and where it began; and the lengths of the first two."""

    s: Tensor
    g: Tensor
    theta: Tensor
    s_norm: float
    g_norm: float

    @classmethod
    def of(cls, s: Tensor, g: Tensor, theta: Tensor, s_norm: float, g_norm: float) -> Layer:
        return cls(whole(s), whole(g), whole(theta), s_norm, g_norm)

    @property
    def size(self) -> int:
        return self.s.numel()

    def flat(self, most: int | None = None) -> list[Tensor]:
        """``s``, ``g`` and ``theta`` as vectors, or the first elements of them."""
        vectors = [t if t.dim() == 1 else t.reshape(-1) for t in (self.s, self.g, self.theta)]
        return vectors if most is None else [t[:most] for t in vectors]

    @property
    def has_direction(self) -> bool:
        return self.g_norm**2 != 0 and math.isfinite(self.g_norm**2)

    @property
    def precision(self) -> float:
        return torch.finfo(self.theta.dtype).eps


def find_factors(layers: Mapping[str, Layer]) -> dict[str, float | None]:
    """c with ``s = c g`` up to what rounding ``theta + s`` to its dtype explains, else None.

    Of all layers, with three transfers from the device at most: one for the small ones and for samples of the others,
    two for those of the others that may run along.
    """
    found: dict[str, float | None] = {}
    small: dict[str, Layer] = {}
    large: dict[str, Layer] = {}
    together = 0
    for name, layer in layers.items():
        if not layer.has_direction:
            found[name] = None if layer.s_norm != 0 else 0.0
        elif layer.size <= LARGE and together < TOGETHER:
            small[name] = layer
            together += layer.size
        else:
            large[name] = layer
    parts = [(layer, None) for layer in small.values()] + [(layer, SAMPLED) for layer in large.values()]
    ends = look_together(to_arrays(parts))
    for (name, layer), end in zip(small.items(), ends, strict=False):
        found[name] = end.factor if end.rest <= layer.precision * (end.theta + 4 * layer.s_norm) else None
    likely = {}
    for (name, layer), end in zip(large.items(), ends[len(small) :], strict=True):
        if not end.tells or end.rest <= 16 * layer.precision * (end.theta + 4 * end.step):
            likely[name] = layer
    return found | dict.fromkeys(large) | look_apart(likely)


@dataclass
class Look:
    """``c = s.g / g.g``, ``||s - c g||``, ``||theta||``, ``||s||``; ``tells`` nothing where g is zero or not finite."""

    factor: float
    rest: float
    theta: float
    step: float
    tells: bool


def to_arrays(parts: Sequence[tuple[Layer, int | None]]) -> list[np.ndarray]:
    """``s``, ``g`` and ``theta`` of each, or the first elements of them, on the host; with one transfer, if they are not."""
    tensors = [t for layer, _ in parts for t in (layer.s, layer.g, layer.theta)]
    if all(t.is_cpu and t.dtype in (torch.float32, torch.float64) and not t.requires_grad for t in tensors):
        return [t.numpy().reshape(-1)[:most] for layer, most in parts for t in (layer.s, layer.g, layer.theta)]
    vectors = [v.to(tensors[0].device) for layer, most in parts for v in layer.flat(most)]
    host = torch.cat(vectors).cpu()
    host = host if host.dtype in (torch.float32, torch.float64) else host.float()
    return np.split(host.numpy(), np.cumsum([len(v) for v in vectors[:-1]]))


def look_together(arrays: Sequence[np.ndarray]) -> list[Look]:
    """On the host, in double precision."""
    pieces = iter(arrays)
    with np.errstate(all="ignore"):
        return [look(s, next(pieces), next(pieces)) for s in pieces]


def look(s: np.ndarray, g: np.ndarray, theta: np.ndarray) -> Look:
    s, g = s.astype(np.float64), g.astype(np.float64)
    squared = float(g @ g)
    tells = squared != 0 and math.isfinite(squared)
    factor = float(s @ g) / squared if tells else math.nan
    rest, length = float(np.linalg.norm(s - factor * g)), float(np.linalg.norm(theta.astype(np.float64)))
    return Look(factor, rest, length, float(np.linalg.norm(s)), tells)


def look_apart(layers: Mapping[str, Layer]) -> dict[str, float | None]:
    """Where they lie, in pieces, with two transfers."""
    if not layers:
        return {}
    dots = read([long_sums.dot(layer.s, layer.g) for layer in layers.values()])
    factors = [dot / layer.g_norm**2 for dot, layer in zip(dots, layers.values(), strict=True)]
    rests = [rest_along(layer, factor) for layer, factor in zip(layers.values(), factors, strict=True)]
    numbers = read([*rests, *long_sums.norms([layer.theta for layer in layers.values()]).unbind()])
    found: dict[str, float | None] = {}
    for k, (name, layer) in enumerate(layers.items()):
        allowed = layer.precision * (numbers[len(rests) + k] + 4 * layer.s_norm)
        found[name] = factors[k] if math.sqrt(numbers[k]) <= allowed else None
    return found


def read(numbers: list[Tensor]) -> list[float]:
    """With one transfer from the device."""
    return torch.stack([number.double() for number in numbers]).tolist()


def rest_along(layer: Layer, factor: float) -> Tensor:
    """``||s - c g||^2``"""
    s, g, _ = layer.flat()
    starts = range(0, len(s), CHUNK)
    parts = [torch.linalg.vector_norm(torch.sub(s[k : k + CHUNK], g[k : k + CHUNK], alpha=factor)) for k in starts]
    return torch.stack(parts).double().square().sum()

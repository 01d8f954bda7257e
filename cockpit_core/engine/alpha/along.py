"""Does a step run along the gradient? Then the projections that are known serve, and nothing need be kept for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cockpit_core.foundation import long_sums
from cockpit_core.foundation.sharded import whole
from cockpit_core.foundation.transfer import Transfer
from cockpit_core.kernels.native import striding

Apart = Callable[[], Mapping[str, tuple[float, float, float]]]
CHUNK = long_sums.CHUNK
"""This many elements are compared at a time, so that the difference takes little memory."""
LARGE, SAMPLED = 8192, 1024
"""In larger layers, a few elements show whether it is worth looking at all of them."""
TOGETHER = 2**18
"""So many elements of small layers are looked at on the host, all at once."""


@dataclass
class Layer:
    """The step of one layer, its gradient and where it began; and the lengths of the first two (that of the step once
    it has been read)."""

    s: Tensor
    g: Tensor
    theta: Tensor
    g_norm: float
    theta_norm: float | None = None
    """Where it is known."""
    s_norm: float = math.nan

    @classmethod
    def of(cls, s: Tensor, g: Tensor, theta: Tensor, g_norm: float, theta_norm: float | None = None) -> Layer:
        return cls(whole(s), whole(g), whole(theta), g_norm, theta_norm)

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
    def is_plain(self) -> bool:
        """On the CPU, in single or double precision."""
        return self.s.is_cpu and self.g.is_cpu and self.s.dtype == self.g.dtype in (torch.float32, torch.float64)

    @property
    def precision(self) -> float:
        return torch.finfo(self.theta.dtype).eps


def find_factors(
    layers: Mapping[str, Layer],
    read_norms: Callable[[], Mapping[str, float]],
    transfer: Transfer,
    *,
    likely: bool = False,
) -> dict[str, float | None]:
    """c with ``s = c g`` up to what rounding ``theta + s`` to its dtype explains, else None. ``read_norms``: lengths
    of the steps, read when everything has been asked for. For all layers this takes at most two transfers from the
    device: one for the small layers and for samples of the others, one for those of the others that may run along.
    Where they are ``likely`` to, the first transfer brings everything.
    """
    if (here := find_here(layers, read_norms)) is not None:
        return here
    small: dict[str, Layer] = {}
    large: dict[str, Layer] = {}
    together = 0
    for name, layer in layers.items():
        if not layer.has_direction:
            continue
        if layer.size <= LARGE and together < TOGETHER:
            small[name] = layer
            together += layer.size
        else:
            large[name] = layer
    parts = [(layer, None) for layer in small.values()] + [(layer, SAMPLED) for layer in large.values()]
    arrays, known = ask_arrays(parts, transfer), [layer.theta_norm for layer in small.values()]
    apart = ask_apart(large, transfer) if likely and not all(layer.s.is_cpu for layer in large.values()) else None
    norms = read_norms()
    for name, layer in layers.items():
        layer.s_norm = norms[name]
    factors = {name: None if layer.s_norm != 0 else 0.0 for name, layer in layers.items() if not layer.has_direction}
    return factors | _judge(small, large, look_together(arrays(), known), transfer, apart)


def find_here(
    layers: Mapping[str, Layer], read_norms: Callable[[], Mapping[str, float]]
) -> dict[str, float | None] | None:
    """The same in one walk through all layers, where they lie on the host, each in one piece; else None. A step against the
    gradient is the first guess; of large layers a few elements give a better one, or tell that there is no need to look."""
    moved = {name: layer for name, layer in layers.items() if layer.has_direction}
    if not striding.can_walk([t for layer in moved.values() for t in (layer.s, layer.g)]):
        return None
    norms = read_norms()
    factors: dict[str, float | None] = {n: None if norms[n] != 0 else 0.0 for n in layers if n not in moved}
    guesses: dict[str, float] = {}
    for name, layer in moved.items():
        layer.s_norm = norms[name]
        guesses[name] = -layer.s_norm / layer.g_norm
        if layer.size > LARGE:
            (end,) = look_together([t.detach().numpy().reshape(-1)[:SAMPLED] for t in (layer.s, layer.g, layer.theta)])
            if end.tells and not end.rest <= 16 * layer.precision * (end.theta + 4 * end.step):
                factors[name] = None
                del guesses[name]
            elif end.tells:
                guesses[name] = end.factor
    chosen = [moved[name] for name in guesses]
    squared = [layer.g_norm**2 for layer in chosen]
    if not chosen:
        return factors
    along = striding.find_along([own.s for own in chosen], [own.g for own in chosen], squared, list(guesses.values()))
    for name, layer, (factor, rest) in zip(guesses, chosen, along, strict=True):
        length = layer.theta_norm
        length = float(long_sums.norms([layer.theta])) if length is None else length
        factors[name] = _factor_of(layer, factor, rest, length)
    return factors


def _judge(
    small: Mapping[str, Layer],
    large: Mapping[str, Layer],
    ends: Sequence[Look],
    transfer: Transfer,
    apart: Apart | None,
) -> dict[str, float | None]:
    factors: dict[str, float | None] = {}
    for (name, layer), end in zip(small.items(), ends, strict=False):
        factors[name] = end.factor if end.rest <= layer.precision * (end.theta + 4 * layer.s_norm) else None
    likely, guesses = {}, {}
    for (name, layer), end in zip(large.items(), ends[len(small) :], strict=True):
        if not end.tells or end.rest <= 16 * layer.precision * (end.theta + 4 * end.step):
            likely[name], guesses[name] = layer, end.factor if end.tells else 0.0
    sums: Mapping[str, tuple[float, float, float]] = {}
    if likely and apart is None and all(layer.is_plain for layer in likely.values()):
        sums = {name: walk_along(layer, guesses[name]) for name, layer in likely.items()}
    elif likely:
        sums = (apart or ask_apart(likely, transfer))()
    return factors | dict.fromkeys(large) | {name: _factor_of(layer, *sums[name]) for name, layer in likely.items()}


@dataclass
class Look:
    """``c = s.g / g.g``, ``||s - c g||``, ``||theta||``, ``||s||``; ``tells`` nothing where g is zero or not finite."""

    factor: float
    rest: float
    theta: float
    step: float
    tells: bool


def ask_arrays(parts: Sequence[tuple[Layer, int | None]], transfer: Transfer) -> Callable[[], list[np.ndarray]]:
    """``s``, ``g`` and ``theta`` of each, or their first elements, brought to the host if they are not there."""
    tensors = [t for layer, _ in parts for t in (layer.s, layer.g, layer.theta)]
    if all(t.is_cpu and t.dtype in (torch.float32, torch.float64) and not t.requires_grad for t in tensors):
        arrays = [t.numpy().reshape(-1)[:most] for layer, most in parts for t in (layer.s, layer.g, layer.theta)]
        return lambda: arrays
    vectors = [v.to(tensors[0].device) for layer, most in parts for v in layer.flat(most)]
    both, ends = torch.cat(vectors), np.cumsum([len(v) for v in vectors[:-1]])
    asked = transfer.ask([both if both.dtype in (torch.float32, torch.float64) else both.float()])
    return lambda: np.split(asked.read()[0].numpy(), ends)


def look_together(arrays: Sequence[np.ndarray], known: Sequence[float | None] = ()) -> list[Look]:
    """On the host, in double precision. ``known``: lengths of the first ``theta``, where somebody has measured them; of these
    layers ``||s||`` is known too."""
    pieces, lengths = iter(arrays), iter(known)
    with np.errstate(all="ignore"):
        return [look(s, next(pieces), next(pieces), next(lengths, None)) for s in pieces]


def look(s: np.ndarray, g: np.ndarray, theta: np.ndarray, theta_norm: float | None = None) -> Look:
    s, g = s.astype(np.float64), g.astype(np.float64)
    squared = float(g @ g)
    tells = squared != 0 and math.isfinite(squared)
    factor = float(s @ g) / squared if tells else math.nan
    rest = length_of(s - factor * g)
    if theta_norm is not None:
        return Look(factor, rest, theta_norm, math.nan, tells)
    return Look(factor, rest, length_of(theta.astype(np.float64)), length_of(s), tells)


def length_of(vector: np.ndarray) -> float:
    return math.sqrt(vector @ vector)


def ask_apart(layers: Mapping[str, Layer], transfer: Transfer) -> Apart:
    """``c``, ``||s - c g||^2`` and ``||theta||`` of each, formed where they lie, in pieces."""
    dots = [long_sums.dot(layer.s, layer.g) for layer in layers.values()]
    factors = [dot.double() / layer.g_norm**2 for dot, layer in zip(dots, layers.values(), strict=True)]
    rests = [rest_along(layer, factor) for layer, factor in zip(layers.values(), factors, strict=True)]
    lengths = long_sums.norms([layer.theta for layer in layers.values()]) if layers else torch.zeros(0)
    there = lengths.device
    numbers = torch.stack([n.double().to(there) for n in (*factors, *rests)]) if layers else lengths
    asked = transfer.ask([torch.cat([numbers, lengths])])

    def read() -> dict[str, tuple[float, float, float]]:
        columns = asked.read()[0].reshape(3, -1).T.tolist()
        return {name: tuple(column) for name, column in zip(layers, columns, strict=True)}

    return read


def walk_along(layer: Layer, guess: float) -> tuple[float, float, float]:
    """What ``ask_apart`` finds, on the CPU in one walk: what ``guess`` leaves of the step, and how far that still runs along
    the gradient. Twice where the guess was so bad that little is left of the difference."""
    s, g, theta = layer.flat()
    squared = layer.g_norm**2
    for _ in range(2):
        parts = []
        guess = float(np.float32(guess)) if s.dtype == torch.float32 else guess  # as it is multiplied with
        for k in range(0, len(s), CHUNK):
            along = g[k : k + CHUNK]
            apart = torch.sub(s[k : k + CHUNK], along, alpha=guess)
            parts += [torch.linalg.vector_norm(apart), torch.dot(apart, along)]
        lengths, dots = torch.stack(parts).double().view(-1, 2).unbind(1)
        rest, more = float(lengths @ lengths), float(dots.sum())
        guess += more / squared
        if more * more <= rest * squared / 4:
            break
    length = layer.theta_norm
    length = float(long_sums.norms([theta])) if length is None else length
    return guess, max(0.0, rest - more * more / squared), length


def _factor_of(layer: Layer, factor: float, rest: float, length: float) -> float | None:
    return factor if math.sqrt(rest) <= layer.precision * (length + 4 * layer.s_norm) else None


def rest_along(layer: Layer, factor: Tensor) -> Tensor:
    """``||s - c g||^2``"""
    s, g, _ = layer.flat()
    starts = range(0, len(s), CHUNK)
    known = float(factor) if factor.is_cpu else None  # a number on another device is not waited for
    own = factor.to(g.dtype)
    parts = []
    for k in starts:
        some, along = s[k : k + CHUNK], g[k : k + CHUNK]
        apart = torch.sub(some, along, alpha=known) if known is not None else some - own * along
        parts.append(torch.linalg.vector_norm(apart))
    return torch.stack(parts).double().square().sum()

"""Random signs, and how those of one probe are turned into those of the next.

In ``v^T K v`` signs of entries that K couples are noise. A sweep takes one set of signs several times, each time with whole groups
of entries turned round, by the rows of a Hadamard matrix: what couples two groups then cancels exactly. The groups
are quarters of a map's outputs: the gates of a recurrent layer lie in different ones, and gates of one unit are what it couples
most. Elsewhere independent probes are better, because within a group a sweep is a single probe.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

SWEEP = 4
"""Probes in one sweep, which is also the number of groups."""


def random_signs(shape: tuple[int, ...], like: Tensor, generator: torch.Generator) -> Tensor:
    """Typed like ``like``. Seven bytes of every number that is drawn are used, bit by bit."""
    count = math.prod(shape)
    drawn = torch.empty(-(-count // 56), dtype=torch.int64, device=generator.device).random_(generator=generator)
    bits = torch.arange(8, dtype=torch.uint8, device=generator.device)
    used = drawn.view(torch.uint8).reshape(-1, 8)[:, :7].reshape(-1, 1)
    signs = (used >> bits).bitwise_and_(1).reshape(-1)[:count]
    return signs.to(like).mul_(2).sub_(1).reshape(shape)


@dataclass(frozen=True)
class Codes:
    """Which groups are turned round in this probe of a sweep; number 0 turns none."""

    number: int = 0

    def _signs(self, groups: Tensor) -> Tensor:
        """``(-1)^(bits in common)``: a row of the Hadamard matrix of order four."""
        common = groups.bitwise_and(self.number)
        return 1 - 2 * (common ^ (common >> 1)).bitwise_and(1)

    def of_parts(self, parameter: int, like: Tensor) -> Tensor:
        """For the parts themselves (``cut_features``), [SWEEP]."""
        return self._signs((torch.arange(SWEEP, device=like.device) + parameter) % SWEEP).to(like)

    def of_features(self, features: int, parameter: int, like: Tensor) -> Tensor:
        """For signs at outputs, [features]: by parts of them."""
        feature = torch.arange(features, device=like.device)
        return self._signs((feature * SWEEP // max(1, features) + parameter) % SWEEP).to(like)


def cut_features(features: int) -> list[int]:
    """Sizes of the parts that a code turns round."""
    bounds = [-(-part * features // SWEEP) for part in range(SWEEP + 1)]
    return [high - low for low, high in pairwise(bounds)]

"""Directions without a pattern, along which it shows whether individual gradients add up to a gradient."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor


class Probe(NamedTuple):
    """A direction ``left right^T`` that every matrix can be projected on in a moment, and ``g_n`` along it [B]."""

    left: Tensor
    right: Tensor
    seen: Tensor

    def along(self, gradient: Tensor) -> float:
        matrix = gradient.reshape(len(self.left), len(self.right))
        return float(torch.dot(torch.mv(matrix, self.right).double(), self.left.double()))


@lru_cache(maxsize=64)
def spread_signs(count: int, dtype: torch.dtype) -> Tensor:
    """Numbers of both signs without a pattern, always the same; drawn from no generator. Not to be changed."""
    return (1.5 * torch.sin(torch.arange(count, dtype=torch.float64, device="cpu") * 12.9898 + 1)).to(dtype)

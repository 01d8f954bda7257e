"""The Gram matrix of individual gradients, ``K_nm = g_n . g_m`` [B, B], layer by layer and never all gradients at once.

One position per sample: ``K = (B B') * (A A')``, elementwise. Otherwise gradients are formed in blocks of samples that fit
the memory budget; where they were formed anyway and fit, those serve. A layer's own matrix is reduced to a few numbers and
added to the network's: with hundreds of layers, hundreds of them would be too much to keep.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from cockpit_core.layers.contribution import Contribution, Outer, Tried
from cockpit_core.layers.scratch import Scratch


@dataclass
class Gram:
    """Of the layers seen so far: the sum of their matrices, and each one's share of pairs that disagree."""

    total: Tensor | None = None
    conflicts: dict[str, float] = field(default_factory=dict)
    layers: set[str] = field(default_factory=set)

    def add(self, name: str, K: Tensor) -> None:
        self.layers.add(name)
        share = share_of_conflicts(K)
        if share is not None:
            self.conflicts[name] = share
        self.total = K.clone() if self.total is None else self.total + K

    def clear(self) -> None:
        self.total, self.conflicts, self.layers = None, {}, set()


def share_of_conflicts(K: Tensor) -> float | None:
    """Of all pairs of different samples those with a negative product. None without a pair of gradients."""
    B = len(K)
    if B < 2 or not bool((K.diagonal() > 0).any()):
        return None
    return float((K < 0).sum()) / (B * (B - 1))  # the diagonal is never negative


@torch.no_grad()
def gram_of(parts: list[Contribution], rows: list[Tensor | None], budget: int, scratch: Scratch) -> Tensor:
    """Of one parameter over all passes of the step; ``rows`` are the gradients [B, D] of a part that were formed anyway."""
    parts = [part.part if isinstance(part, Tried) else part for part in parts]
    if all(isinstance(part, Outer) for part in parts):
        a, b = (torch.cat([getattr(part, side).double() for part in parts]) for side in "ab")
        return ((b @ b.T) * (a @ a.T)).cpu()
    blocks = [(k, lo, hi) for k, part in enumerate(parts) for lo, hi in cut(part, rows[k], budget)]
    starts = [0]
    for _, lo, hi in blocks:
        starts.append(starts[-1] + hi - lo)
    K = torch.zeros(starts[-1], starts[-1], dtype=torch.float64)
    for i, (k, lo, hi) in enumerate(blocks):
        G = (
            form(parts[k], rows[k], lo, hi, scratch).clone()
            if len(blocks) > 1
            else form(parts[k], rows[k], lo, hi, scratch)
        )
        for j in range(i + 1):
            other = G if i == j else form(parts[blocks[j][0]], rows[blocks[j][0]], *blocks[j][1:], scratch)
            product = (G @ other.to(G.dtype).T).double().cpu()
            K[starts[i] : starts[i + 1], starts[j] : starts[j + 1]] = product
            K[starts[j] : starts[j + 1], starts[i] : starts[i + 1]] = product.T
    return K


def cut(part: Contribution, rows: Tensor | None, budget: int) -> list[tuple[int, int]]:
    """Blocks of samples whose gradients take an eighth of the budget: two of them, and what forming takes."""
    each = part.floats_per_sample * 8
    size = part.samples if rows is not None else max(1, budget // 8 // max(each, 1))
    return [(lo, min(lo + size, part.samples)) for lo in range(0, part.samples, size)]


def form(part: Contribution, rows: Tensor | None, lo: int, hi: int, scratch: Scratch) -> Tensor:
    return rows[lo:hi] if rows is not None else part.form(lo, hi, scratch).reshape(hi - lo, -1)


def fits(part: Contribution, budget: int) -> bool:
    """May all individual gradients of this part be kept for a moment, if they are formed anyway?"""
    return part.samples * part.shape.numel() * 8 <= budget // 4

"""The Gram matrix of individual gradients, ``K_nm = g_n . g_m`` [B, B], layer by layer and never all gradients at once.

One position per sample: ``K = (B B') * (A A')``, elementwise. Of few samples, kernels compare what they sum in registers.
Otherwise gradients are formed in blocks of samples that fit the memory budget; where they were formed anyway and fit, those
serve. A layer's own matrix is reduced to a few numbers and
added to the network's: with hundreds of layers, hundreds of them would be too much to keep.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cockpit_core.kernels.native.comparing import MOST_COMPARED, compare_blocks
from cockpit_core.kernels.native.reducing import can_reduce
from cockpit_core.layers.contribution import Contribution, Outer
from cockpit_core.layers.scratch import Scratch
from cockpit_core.layers.standing_in import Tried


@torch.no_grad()
def gram_of(
    parts: list[Contribution], rows: list[Tensor | None], chosen: list[int], budget: int, scratch: Scratch
) -> Tensor:
    """Of one parameter over all passes of the step, the first ``chosen`` samples of each; ``rows`` are gradients [n, D]
    that were formed anyway."""
    parts = [part.part if isinstance(part, Tried) else part for part in parts]
    if len(parts) == 1 and rows[0] is None and parts[0].compares(chosen[0]):
        return parts[0].compare(chosen[0])
    if all(isinstance(part, Outer) for part in parts):
        a, b = (torch.cat([getattr(p, side)[:n] for p, n in zip(parts, chosen, strict=True)]) for side in "ab")
        return ((b @ b.T).double() * (a @ a.T).double()).cpu()
    blocks = [(k, lo, hi) for k in range(len(parts)) for lo, hi in cut(parts[k], rows[k], chosen[k], budget)]
    if len(blocks) == 1:
        G = form(parts[0], rows[0], 0, chosen[0], scratch)
        if can_reduce(G, 0) and len(G) <= MOST_COMPARED:
            return compare_blocks([G], [1.0])[0]
        return (G @ G.T).double().cpu()  # one product reads them once; half of it by smaller blocks takes longer
    starts = [0]
    for _, lo, hi in blocks:
        starts.append(starts[-1] + hi - lo)
    K = torch.zeros(starts[-1], starts[-1], dtype=torch.float64)
    for i, (k, lo, hi) in enumerate(blocks):
        G = form(parts[k], rows[k], lo, hi, scratch)
        G = G.clone() if rows[k] is None else G  # the next block is formed where this one was
        for j in range(i + 1):
            m, first, last = blocks[j]
            other = G if i == j else form(parts[m], rows[m], first, last, scratch)
            product = (G @ other.to(G.dtype).T).double().cpu()
            K[starts[i] : starts[i + 1], starts[j] : starts[j + 1]] = product
            K[starts[j] : starts[j + 1], starts[i] : starts[i + 1]] = product.T
    return K


def cut(part: Contribution, rows: Tensor | None, samples: int, budget: int) -> list[tuple[int, int]]:
    """Blocks of samples whose gradients take an eighth of the budget: two of them, and what forming takes."""
    size = samples if rows is not None else max(1, budget // 8 // max(part.floats_per_sample * 8, 1))
    return [(lo, min(lo + size, samples)) for lo in range(0, samples, max(size, 1))]


def form(part: Contribution, rows: Tensor | None, lo: int, hi: int, scratch: Scratch) -> Tensor:
    return rows[lo:hi] if rows is not None else part.form(lo, hi, scratch).reshape(hi - lo, -1)


def fits(part: Contribution, samples: int, budget: int) -> bool:
    """May the gradients of so many samples be kept for a moment, if they are formed anyway?"""
    return samples * part.shape.numel() * 8 <= budget // 4

"""Sums over millions of elements: in pieces, whose sums are added in double precision.

A norm or a product of float32 vectors is summed in float32, and the error grows with the length: a norm over 38 million
elements is off by 0.2 %, a product by much more where terms cancel. Pieces of ``PIECE`` elements keep it near rounding,
read the memory once as before, and take no copy of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from cockpit_core.foundation.ungraded import ungraded

PIECE = 2**14
"""Short enough for float32, long enough that adding the pieces costs nothing."""


def is_long(tensor: Tensor, count: int) -> bool:
    return count > PIECE and tensor.dtype != torch.float64


def norm(tensor: Tensor) -> float:
    """``||x||_2``"""
    flat = tensor.detach().reshape(-1)
    if not is_long(flat, len(flat)):
        return float(torch.linalg.vector_norm(flat))
    return math.sqrt(float(row_squares(flat[None])))


@ungraded
def norms(tensors: Sequence[Tensor]) -> Tensor:
    """``||x||_2`` of each, [n] in double precision, where they lie: nobody waits for the device."""
    short = [t for t in tensors if not is_long(t, t.numel())]
    found = iter(torch._foreach_norm(short) if short else [])
    each = [row_squares(t.reshape(1, -1)).sqrt_()[0] if is_long(t, t.numel()) else next(found) for t in tensors]
    same = len({(norm.dtype, norm.device) for norm in each}) == 1
    return torch.stack(each if same else [norm.double().to(each[0].device) for norm in each]).double()


def row_squares(G: Tensor) -> Tensor:
    """``sum_j G_nj^2`` [n] of a matrix [n, D], in double precision."""
    count = G.shape[1]
    if not is_long(G, count):
        return torch.linalg.vector_norm(G, dim=1).double().square_()
    even = count // PIECE * PIECE
    pieces = G[:, :even].unflatten(1, (-1, PIECE))
    total = torch.linalg.vector_norm(pieces, dim=2).double().square_().sum(1)
    return total + torch.linalg.vector_norm(G[:, even:], dim=1).double().square_() if even < count else total


def row_products(G: Tensor, V: Tensor) -> Tensor:
    """``G V`` [n, k] of a matrix [n, D] with a few columns [D, k], in double precision."""
    count = G.shape[1]
    if not is_long(G, count):
        return (G @ V).double()
    total = torch.zeros(G.shape[0], V.shape[1], dtype=torch.float64, device=G.device)
    piece = PIECE if G.device.type == "cpu" else 64 * PIECE
    for lo in range(0, count, piece):
        total += (G[:, lo : lo + piece] @ V[lo : lo + piece]).double()
    return total


def dot(a: Tensor, b: Tensor) -> Tensor:
    """``a . b``, in double precision, where they lie."""
    a, b = a.reshape(-1), b.reshape(-1)
    if not is_long(a, len(a)):
        return torch.linalg.vecdot(a, b).double()
    even = len(a) // PIECE * PIECE
    pieces = torch.linalg.vecdot(a[:even].unflatten(0, (-1, PIECE)), b[:even].unflatten(0, (-1, PIECE)))
    return pieces.double().sum() + torch.linalg.vecdot(a[even:], b[even:]).double()

"""Sums over millions of elements: in pieces, whose sums are added in double precision.

A norm or a product of float32 vectors is summed in float32, and the error grows with the length: a norm over 38 million
elements is off by 0.2 %, a product by much more where terms cancel. Pieces of ``PIECE`` elements keep it near rounding,
read the memory once as before, and take no copy of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter

from cockpit_core.foundation.ungraded import ungraded

PIECE = 2**14
"""Short enough for float32, long enough that adding the pieces costs nothing."""

FEW = 8
"""Short tensors that numpy measures in less time than torch takes to begin with all of them."""
AT_HAND = (torch.float32, torch.float64)

CHUNK = 2**17
"""This many elements are worked on at a time, so that they stay in the cache."""


def is_long(tensor: Tensor, count: int) -> bool:
    return count > PIECE and tensor.dtype != torch.float64


def norm(tensor: Tensor) -> float:
    """``||x||_2``"""
    flat = tensor.detach().reshape(-1)
    if not is_long(flat, len(flat)):
        return float(torch.linalg.vector_norm(flat))
    return math.sqrt(float(row_squares(flat[None])))


def sum_of(vectors: Sequence[Tensor]) -> Tensor:
    """The sum of some vectors; of one or two without asking for a matrix of them."""
    if len(vectors) > 2:
        return torch.stack(list(vectors)).sum(0)
    return vectors[0] if len(vectors) == 1 else vectors[0] + vectors[1]


@ungraded
def norms(tensors: Sequence[Tensor]) -> Tensor:
    """``||x||_2`` of each, [n] in double precision, where they lie: nobody waits for the device."""
    if len(tensors) <= FEW and all(is_at_hand(t) for t in tensors):
        with np.errstate(all="ignore"):  # they may be infinite
            return torch.tensor([length_at_hand(t) for t in tensors], dtype=torch.float64)
    short = [t for t in tensors if not is_long(t, t.numel())]
    lengths = iter(torch._foreach_norm(short) if short else [])
    each = [row_squares(t.reshape(1, -1)).sqrt_()[0] if is_long(t, t.numel()) else next(lengths) for t in tensors]
    same = len({(norm.dtype, norm.device) for norm in each}) == 1
    return torch.stack(each if same else [norm.double().to(each[0].device) for norm in each]).double()


def is_at_hand(tensor: Tensor) -> bool:
    """Short, on the host, and of a type that numpy has. Tensors of other classes may hold their numbers elsewhere."""
    plain = type(tensor) in (Tensor, Parameter) and tensor.is_cpu and tensor.layout == torch.strided
    return plain and tensor.dtype in AT_HAND and tensor.numel() <= PIECE and not tensor.is_neg()


def length_at_hand(tensor: Tensor) -> float:
    values = tensor.detach().numpy().reshape(-1).astype(np.float64)
    return math.sqrt(values @ values)


@ungraded
def differences(one: Sequence[Tensor], other: Sequence[Tensor], *, keep: bool) -> tuple[list[Tensor], Tensor]:
    """``x - y`` of each (none, unless they are to be kept), and ``||x - y||_2`` [n] in double precision, where they lie.

    What is long is walked through once: each chunk of a difference is measured while it lies in the cache.
    """
    apart = [is_walked(x, y) for x, y in zip(one, other, strict=True)]
    pairs = [pair for pair, long in zip(zip(one, other, strict=True), apart, strict=True) if not long]
    short = list(torch._foreach_sub(*map(list, zip(*pairs, strict=True)))) if pairs else []
    if len(short) == len(apart):  # nothing is long
        return short if keep else [], norms(short) if short else torch.zeros(0)
    pieces, lengths = iter(short), iter(norms(short).unbind() if short else ())
    moved: list[Tensor] = []
    each: list[Tensor] = []
    for x, y, long in zip(one, other, apart, strict=True):
        difference, length = walk(x, y, keep) if long else (next(pieces), next(lengths))
        moved += [difference] if keep and difference is not None else []
        each.append(length)
    return moved, torch.stack([length.to(each[0].device) for length in each]) if each else torch.zeros(0)


def is_walked(x: Tensor, y: Tensor) -> bool:
    plain = x.is_cpu and y.is_cpu and x.dtype == y.dtype and x.is_contiguous() and y.is_contiguous()
    return plain and is_long(x, x.numel())


def walk(x: Tensor, y: Tensor, keep: bool) -> tuple[Tensor | None, Tensor]:
    """The difference of two long tensors. Pieces are those of ``row_squares``, so that a length is the same either
    way."""
    a, b = x.reshape(-1), y.reshape(-1)
    made = torch.empty_like(a) if keep else a.new_empty(CHUNK)
    pieces = a.new_empty(-(-len(a) // PIECE))
    for low in range(0, len(a), CHUNK):
        size = min(CHUNK, len(a) - low)
        part = torch.sub(a[low : low + size], b[low : low + size], out=made.narrow(0, low if keep else 0, size))
        measure_pieces(part, low, pieces)
    return made.view_as(x) if keep else None, join_pieces(pieces)


def measure_pieces(part: Tensor, low: int, pieces: Tensor) -> None:
    """The lengths of the pieces of one chunk, which begins at ``low``, to their places among all."""
    even, first = len(part) // PIECE, low // PIECE
    if even:
        rows = part[: even * PIECE].view(even, PIECE)
        torch.linalg.vector_norm(rows, dim=1, out=pieces[first : first + even])
    if even * PIECE < len(part):
        torch.linalg.vector_norm(part[even * PIECE :], dim=0, out=pieces[-1])


def join_pieces(pieces: Tensor) -> Tensor:
    return pieces.double().square_().sum().sqrt_()


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

"""Inner products and squares of individual gradients of one parameter, over all its uses, mostly without forming them.

With ``g_n = sum_s l_{n,s} r_{n,s}^T`` (factors.py), s over the positions of all uses of the parameter:
- ``<g_n, h_n> = sum_{s,t} (l_s . l'_t)(r_s . r'_t)``, two Gram matrices, where that is cheaper than forming ``g_n``;
- ``sum_n g_n^2`` with one position is ``(l^2)^T r^2``; with several, ``g_n`` is formed for a few samples at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from .factors import Direct, Factors, OneHot, Outer, Piece

_BLOCK = 2**20  # elements of individual gradients that are formed at once: about what stays in a core's cache


class Individual:
    """All uses of one parameter. Columns come as a list, one b [V, *shape of the node's output] per use."""

    def __init__(self, pieces: Sequence[Piece], shape: Sequence[int], batch_size: int, block: int = _BLOCK):
        self.pieces, self.shape, self.batch_size, self._block = list(pieces), tuple(shape), batch_size, block
        self.elements = math.prod(self.shape)
        self.small = all(isinstance(piece, Direct) for piece in self.pieces)

    def inner_products(self, vs: Sequence[Tensor], ws: Sequence[Tensor]) -> Tensor:
        """``sum over columns of <g_n(v), g_n(w)>``: [B]."""
        if self.small:
            left = self._direct(vs)
            return (left * (left if ws is vs else self._direct(ws))).sum((0, 2))
        return torch.cat([self._inner(v, w) for v, w in self._blocks(vs, ws)])

    def _direct(self, bs: Sequence[Tensor]) -> Tensor:
        made = [p.gradient(b) for p, b in zip(self.pieces, bs, strict=True) if isinstance(p, Direct)]
        return made[0] if len(made) == 1 else torch.stack(made).sum(0)

    def _outer(self) -> list[Outer]:
        return [p for p in self.pieces if isinstance(p, Outer)]

    def _blocks(self, *several: Sequence[Tensor]) -> Iterator[list[list[Factors]]]:
        """Factors of a few samples at a time, for each list of columns."""
        outer = self._outer()
        arranged: list[list[Tensor]] = []
        for i, bs in enumerate(several):
            same = i > 0 and bs is several[0]
            arranged.append(arranged[0] if same else [p.arrange(b) for p, b in zip(outer, bs, strict=True)])
        for part in self._parts(arranged[0]):
            blocks: list[list[Factors]] = []
            for i, some in enumerate(arranged):
                same = i > 0 and some is arranged[0]
                made = blocks[0] if same else [p.factors(b, part) for p, b in zip(outer, some, strict=True)]
                blocks.append(made if same else merge(made))
            yield blocks

    def _parts(self, arranged: list[Tensor]) -> Iterator[slice]:
        columns = arranged[0].shape[0]
        each = max(columns * self.elements, max(b[:, 0].numel() for b in arranged))
        size = max(1, self._block // each)
        for begin in range(0, self.batch_size, size):
            yield slice(begin, min(begin + size, self.batch_size))

    def _inner(self, v: list[Factors], w: list[Factors]) -> Tensor:
        """[n]"""
        grouped = v[0].groups > 1
        spots = sum(f.positions for f in v)
        if not grouped and (len(v) > 1 or spots < self._worth_forming(v[0])):
            return sum((_gram(f, h) for f in v for h in w), start=v[0].right.new_zeros(()))
        formed = form(v[0])
        return (formed * (formed if w is v else form(w[0]))).flatten(2).sum((0, 2))

    def _worth_forming(self, f: Factors) -> float:
        """Positions from which on multiplying out is cheaper: ``s^2 (l + r) > 2 s l r``."""
        left, right = f.left.rows if isinstance(f.left, OneHot) else f.left.shape[3], f.right.shape[3]
        return 2 * left * right / (left + right)

    def add_squares(self, bs: Sequence[Tensor], signs: Tensor | None, squares: Tensor, norms: Tensor) -> None:
        """``squares += sum_{v,n} sign g_{v,n}^2`` and ``norms += sum_v sign ||g_{v,n}||^2``. signs: [V, B] or None."""
        if self.small:
            g2 = self._direct(bs).square()
            g2 = g2 if signs is None else g2 * signs.unsqueeze(2)
            squares += g2.sum((0, 1)).reshape(squares.shape)
            norms += g2.sum((0, 2))
            return
        begin = 0
        for (factors,) in self._blocks(bs):
            part = slice(begin, begin := begin + factors[0].right.shape[1])
            own = None if signs is None else signs[:, part]
            self._add_block(factors, own, squares, norms[part])

    def _add_block(self, factors: list[Factors], signs: Tensor | None, squares: Tensor, norms: Tensor) -> None:
        f = factors[0]
        if len(factors) == 1 and isinstance(f.left, OneHot):
            _add_looked_up(f.left, f.right, signs, squares, norms)
            return
        if len(factors) == 1 and f.groups == 1 and f.positions == 1 and f.one_is_given:
            _add_single(f, signs, squares, norms)
            return
        g = sum((form(h) for h in factors[1:]), start=form(f)).square_()
        if signs is not None:
            g = g * signs[:, :, None, None, None]
        squares += g.sum((0, 1)).reshape(squares.shape)
        norms += g.flatten(2).sum((0, 2))


def merge(made: list[Factors]) -> list[Factors]:
    """Uses of one matrix at many time steps are one use with many positions; a look-up in a table stays apart."""
    dense = [f for f in made if isinstance(f.left, Tensor)]
    if len(dense) < 2:
        return made
    left = _side_by_side([f.left for f in dense if isinstance(f.left, Tensor)])
    right = _side_by_side([f.right for f in dense])
    return [Factors(left, right), *(f for f in made if isinstance(f.left, OneHot))]


def _side_by_side(some: list[Tensor]) -> Tensor:
    """Along the positions; what has no columns of its own is repeated only beside what has."""
    columns = max(t.shape[0] for t in some)
    return torch.cat([t.expand(columns, *t.shape[1:]) for t in some], -1)


def form(f: Factors) -> Tensor:
    """[V, n, G, L, R]"""
    if isinstance(f.left, Tensor):
        return f.left @ f.right.mT
    v, n, _, width, spots = f.right.shape
    g = f.right.new_zeros(v, n * f.left.rows, width)
    samples = torch.arange(n, device=g.device).unsqueeze(1) * f.left.rows
    rows = f.right[:, :, 0].mT * f.left.kept.unsqueeze(-1)
    g.index_add_(1, (samples + f.left.indices).reshape(-1), rows.reshape(v, n * spots, width))
    return g.view(v, n, 1, f.left.rows, width)


def _gram(f: Factors, h: Factors) -> Tensor:
    """``sum over columns, s and t of (l_s . l'_t)(r_s . r'_t)``: [n]. The factor without columns is only taken once."""
    left, right = products(f.left, h.left), products(f.right, h.right)  # [V or 1, n, S, T]
    if left.shape[0] != right.shape[0]:
        left, right = left.sum(0, keepdim=True), right.sum(0, keepdim=True)
    return (left * right).sum((0, 2, 3))


def products(x: Tensor | OneHot, y: Tensor | OneHot) -> Tensor:
    """[V or 1, n, S, T]"""
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        return (x.mT @ y)[:, :, 0]
    if isinstance(x, OneHot) and isinstance(y, OneHot):
        same = x.indices.unsqueeze(2) == y.indices.unsqueeze(1)
        return (same & x.kept.unsqueeze(2) & y.kept.unsqueeze(1)).unsqueeze(0)
    if isinstance(x, Tensor):
        return products(y, x).mT
    assert isinstance(y, Tensor)
    places = x.indices[None, :, :, None].expand(y.shape[0], -1, -1, y.shape[-1])
    return y[:, :, 0].gather(2, places) * x.kept[None, :, :, None]


def _add_single(f: Factors, signs: Tensor | None, squares: Tensor, norms: Tensor) -> None:
    """One position: ``(l r^T)^2 = l^2 (r^2)^T``, and the columns are summed before."""
    assert isinstance(f.left, Tensor)
    carries = f.left.shape[0] >= f.right.shape[0]
    left, right = (x[:, :, 0, :, 0].square() for x in (f.left, f.right))  # [V or 1, n, F]
    if signs is not None:
        left, right = (left * signs.unsqueeze(2), right) if carries else (left, right * signs.unsqueeze(2))
    left, right = left.sum(0), right.sum(0)
    squares += (left.T @ right).reshape(squares.shape)
    norms += left.sum(1) * right.sum(1)


def _add_looked_up(left: OneHot, right: Tensor, signs: Tensor | None, squares: Tensor, norms: Tensor) -> None:
    """Rows that one sample looks up several times are added before squaring; never a table per sample."""
    v, n, _, width, _ = right.shape
    sample = torch.arange(n, device=right.device).unsqueeze(1)
    keys, where = torch.unique(sample * left.rows + left.indices, return_inverse=True)
    rows = (right[:, :, 0].mT * left.kept.unsqueeze(-1)).reshape(v, -1, width)
    g2 = right.new_zeros(v, len(keys), width).index_add_(1, where.reshape(-1), rows).square_()
    if signs is not None:
        g2 = g2 * signs[:, keys // left.rows].unsqueeze(-1)
    g2 = g2.sum(0)
    squares.index_add_(0, keys % left.rows, g2)
    norms.index_add_(0, keys // left.rows, g2.sum(1))

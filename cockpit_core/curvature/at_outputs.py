"""Random signs at the outputs of all uses of one parameter. They stand for a change of it where it has more inputs
than positions.

Signs v at the outputs stand for the change ``D^T v = sum_s v_s a_s^T`` of the weight, which is never formed (individual.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from .autograd_graph import output_shape
from .factors import Factors, Outer
from .individual import Individual, merge, products
from .point import NoCurvature
from .pushing import is_plain, sum_by_sample
from .signs import SWEEP, Codes, cut_features, random_signs

Starts = list[tuple[GradientEdge, Tensor]]


class SignsAtOutputs:
    """For weights that are used again behind themselves. Drawn anew by ``draw``; ``pair`` is what one draw says of the trace."""

    def __init__(self, one: Individual, number: int):
        self._one, self._number = one, number
        self._base: list[Tensor] = []
        self._drawn: list[Tensor] = []

    def draw(self, generator: torch.Generator, like: Tensor) -> None:
        self._base = [random_signs(output_shape(p.site.node), like, generator) for p in self._one.pieces]

    def changes(self, codes: Codes) -> list[Tensor]:
        """At the output of each use, [*shape]."""
        self._drawn = [self._turned(b, codes, use) for use, b in enumerate(self._base)] if codes.number else self._base
        return self._drawn

    def _turned(self, base: Tensor, codes: Codes, use: int) -> Tensor:
        layout = self._one.pieces[use].site.layout
        apart = layout.samples_first(base.unsqueeze(0))
        return layout.undo(apart * codes.of_features(apart.shape[-1], self._number, base), base.shape)[0]

    def pair(self, changes: Sequence[Tensor], images: Sequence[Tensor | None]) -> Tensor:
        """``<D_n^T v_n, D_n^T w_n>``, [B]; v: the changes, w: their images, zero where there is none."""
        if all(w is None for w in images):
            return torch.zeros(self._one.batch_size, dtype=torch.float64)
        ws = [torch.zeros_like(v) if w is None else w for v, w in zip(changes, images, strict=True)]
        v, w = ([t.unsqueeze(0) for t in some] for some in (changes, ws))
        return self._one.inner_products(v, w).double().cpu()

    def starts(self, slopes: Sequence[Tensor]) -> Starts:
        return input_seeds(self._one, self._drawn, list(slopes))


class MixedSigns:
    """The same changes with less noise: ``e = L v`` with ``L L^T = [a_s . a_t]``, so that ``e^T K e`` is the trace in the mean.

    Signs v by themselves would give ``v^T (L L^T) K v``, which is not symmetric, and noisier the more alike the a_s
    are.
    L is triangular, with the positions in the order of the gradients there: those that matter most are mixed least.
    """

    def __init__(self, one: Individual, number: int, slopes: Sequence[Tensor | None], again: bool):
        self._one, self._number = one, number
        self._pieces = [p for p in one.pieces if isinstance(p, Outer)]
        self._lengths = [p.positions for p in self._pieces]
        self._basis = torch.zeros(0)
        if self._pieces[0].one_hot is not None:
            self._mixing = _same_tokens(self._pieces)
        else:
            sizes = [p.gradient_sizes(s) for p, s in zip(self._pieces, slopes, strict=True)]
            order = torch.cat(sizes, 1).argsort(1, descending=True)
            if again:
                self._mixing, self._basis = _orthogonal(self._pieces, order)
            else:
                self._mixing = _triangular(self._pieces, order)
        self._base = self._mixed = torch.zeros(0)
        self._codes = Codes()
        self._slopes: Tensor | None = None
        self._laid: list[Tensor] = []
        self._by_part: Tensor | None = None

    def draw(self, generator: torch.Generator, like: Tensor) -> None:
        shape = (self._one.batch_size, self._pieces[0].groups, self._pieces[0].features, self._mixing.shape[2])
        self.take(random_signs(shape, like, generator))

    @torch.no_grad()
    def take(self, signs: Tensor) -> None:
        """[B, G, F, S']; what is worked out of them serves all codes, which turn features round."""
        self._base, self._by_part = signs, None
        mixed = signs @ self._mixing.to(signs.dtype)
        self._mixed, self._laid = mixed, []
        if self._is_stepwise():
            self._mixed = mixed[:, 0].permute(2, 0, 1).contiguous()
        elif all(p.site.kind != "Convolution" for p in self._pieces):  # features come last
            self._laid = self._put_back(mixed)

    def _is_stepwise(self) -> bool:
        """Has every use one position of each sample, and nothing else, as time steps of a recurrence have?"""
        plain = (self._one.batch_size, self._pieces[0].features)
        return all(
            p.positions == p.groups == 1 and is_plain(p.site.layout) and output_shape(p.site.node) == plain
            for p in self._pieces
        )

    @torch.no_grad()
    def changes(self, codes: Codes) -> list[Tensor]:
        """At the output of each use, [*shape]."""
        self._codes, e, stepwise = codes, self._mixed, self._mixed.dim() == 3
        if codes.number:
            signs = codes.of_features(self._base.shape[2], self._number, e)
            if self._laid:
                return [own * signs for own in self._laid]
            e = e * (signs if stepwise else signs.unsqueeze(1))
        if stepwise:
            return list(e.unbind())
        return self._laid or self._put_back(e)

    def _put_back(self, mixed: Tensor) -> list[Tensor]:
        return [p.put_back(e) for p, e in zip(self._pieces, mixed.split(self._lengths, -1), strict=True)]

    def pair(self, changes: Sequence[Tensor], images: Sequence[Tensor | None]) -> Tensor:
        """[B]"""
        return sum_by_sample(self._one, changes, images)

    def starts(self, slopes: Sequence[Tensor]) -> Starts:
        """``dW^T b`` at the inputs of all linear maps, with ``dW = v Q^T``; b: the slopes at their outputs, which are the same
        for every probe."""
        if self._slopes is None:
            factors = [p.gradient_factor(s)[0, :, 0] for p, s in zip(self._pieces, slopes, strict=True)]
            self._slopes = torch.cat(factors, -1)  # [B, O, S]
        b = self._slopes
        if self._by_part is None:  # a code turns whole parts of the features round: their products are made once
            sizes = cut_features(b.shape[1])
            parts = zip(self._base[:, 0].split(sizes, 1), b.split(sizes, 1), strict=True)
            self._by_part = torch.stack([v.mT @ own for v, own in parts])  # [SWEEP, B, S', S]
        signs = self._codes.of_parts(self._number, b) if self._codes.number else b.new_ones(SWEEP)
        summed = (self._by_part * signs[:, None, None, None]).sum(0)
        made = (self._basis.to(b.dtype) @ summed).split(self._lengths, -1)
        pairs = [(p.input_edge, p.input_seed(c)) for p, c in zip(self._pieces, made, strict=True)]
        return [(edge, c) for edge, c in pairs if edge is not None]


def _same_tokens(pieces: list[Outer]) -> Tensor:
    """Each takes the signs of the first one that is the same: ``L^T``, [B, 1, S, S]."""
    made = [p.one_hot for p in pieces if p.one_hot is not None]
    tokens, kept = torch.cat([m.indices for m in made], 1), torch.cat([m.kept for m in made], 1)
    first = (tokens.unsqueeze(2) == tokens.unsqueeze(1)).int().argmax(2)  # [B, S]
    chosen = torch.nn.functional.one_hot(first, tokens.shape[1]) * kept.unsqueeze(2)
    return chosen.mT.unsqueeze(1).float()


def _orthogonal(pieces: list[Outer], order: Tensor) -> tuple[Tensor, Tensor]:
    """``a = Q R``, positions in this order: R [B, 1, S', S], Q [B, I, S'] with S' the smaller of positions and inputs."""
    given = torch.cat([p.given_of(slice(None))[0, :, 0] for p in pieces], -1)  # [B, I, S]
    basis, mixing = torch.linalg.qr(given.gather(2, order.unsqueeze(1).expand_as(given)))
    if not bool(torch.isfinite(mixing).all()):
        raise NoCurvature("what a weight was given is not finite at this step")
    return mixing.gather(2, order.argsort(1).unsqueeze(1).expand_as(mixing)).unsqueeze(1), basis


def _triangular(pieces: list[Outer], order: Tensor) -> Tensor:
    """``L^T``, [B, G, S, S], triangular once the positions are put in this order, [B, S]."""
    whole = [torch.cat([p.given_of(part)[0] for part in p.parts(p.site.layout.batch_size)]) for p in pieces]
    given = torch.cat(whole, -1).double()  # [B, G, I, S]
    given = given.gather(3, order[:, None, None, :].expand_as(given))
    products = given.mT @ given
    size = products.diagonal(dim1=-2, dim2=-1).sum(-1).clamp_min(torch.finfo(torch.float64).tiny)
    eye = torch.eye(products.shape[-1], dtype=torch.float64, device=products.device)
    factor, failed = torch.linalg.cholesky_ex(products + 1e-12 * size[..., None, None] * eye)
    if bool(failed.any()) or not bool(torch.isfinite(factor).all()):
        raise NoCurvature("what a weight was given is not finite at this step")
    places = order.argsort(1)[:, None, None, :].expand_as(factor)
    return factor.mT.gather(3, places)


def input_seeds(one: Individual, vs: list[Tensor], bs: list[Tensor]) -> list[tuple[GradientEdge, Tensor]]:
    """For every linear map t: ``sum over the other uses u of (v_u a_u^T)^T b_t``, shaped like its input."""
    outer = [p for p in one.pieces if isinstance(p, Outer)]
    whole = slice(None)
    made = [p.factors(p.arrange(v.unsqueeze(0)), whole) for p, v in zip(outer, vs, strict=True)]
    owners = _owners([(u, f.positions) for u, f in enumerate(made) if isinstance(f.left, Tensor)], made[0].right)
    merged, seeds = merge(made), []
    for turned in (False, True):
        targets = [t for t, p in enumerate(outer) if p.input_edge is not None and p.turned == turned]
        if not targets:
            continue
        b = torch.cat([outer[t].gradient_factor(bs[t]) for t in targets], -1)  # [1, n, 1, O, T]
        lengths = [made[t].positions for t in targets]
        same = owners.unsqueeze(1) == _owners(list(zip(targets, lengths, strict=True)), b)
        total = sum(_pull(f, b, turned, same) for f in merged)
        assert isinstance(total, Tensor)
        for t, seed in zip(targets, total.split(lengths, -1), strict=True):
            edge = outer[t].input_edge
            assert edge is not None
            seeds.append((edge, outer[t].input_seed(seed)))
    return seeds


def _owners(uses: list[tuple[int, int]], like: Tensor) -> Tensor:
    """Which use each position belongs to."""
    numbers = [torch.full((length,), use, device=like.device) for use, length in uses]
    return torch.cat(numbers) if numbers else torch.zeros(0, device=like.device)


def _pull(f: Factors, b: Tensor, turned: bool, same: Tensor) -> Tensor:
    """``(l r^T)^T b``, or ``l r^T b`` if turned, without what a use gets from itself: [n, I, T]. b: [1, n, 1, O, T]."""
    inner = products(f.right if turned else f.left, b)  # [1, n, S, T]
    if isinstance(f.left, Tensor):
        inner = inner.masked_fill(same, 0.0)
        return ((f.left if turned else f.right)[:, :, 0] @ inner)[0]
    if not turned:
        return (f.right[:, :, 0] @ inner)[0]
    table = inner.new_zeros(inner.shape[1], f.left.rows, inner.shape[3])
    places = f.left.indices.unsqueeze(-1).expand(-1, -1, inner.shape[3])
    return table.scatter_add_(1, places, inner[0] * f.left.kept.unsqueeze(-1))

"""What a change of a parameter (a different one for each sample) does to the outputs of its uses: the reverse of
factors.py.

With ``dW_n`` the change for sample n, ``dz_n = dW_n a_n`` at every use. A random ``dW_n`` probes the Hessian of one sample as
a matrix over the parameter. Where a weight sees more positions than it has inputs (convolutions, biases, norms), that is far
less noisy than random signs at all outputs, most of which no change of the weight can bring about.

``v^T R v`` has no noise from the diagonal of R, so the signs are taken in a basis in which R has less off the
diagonal. What a convolution
sees has much in common at all its positions (behind a ReLU, its mean), and R is largest along that: so the first few axes
are means over the quarters of an image. Measured on a U-Net: half the variance, for the cost of two means.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from .factors import Direct, Outer, Piece
from .individual import Individual
from .signs import Codes, random_signs
from .sites import Layout

_AXES = 4
"""How many axes of the basis are means of what a weight was given."""


class ChangeOfParameter:
    """Random signs for each sample, drawn anew by ``draw``; ``pair`` is what one draw says of the trace."""

    def __init__(self, one: Individual, number: int):
        self._one, self._number = one, number
        self._base = self._change = torch.zeros(0)
        self._turn = _Turn(one.pieces[0]) if len(one.pieces) == 1 and isinstance(one.pieces[0], Outer) else None

    @torch.no_grad()
    def draw(self, generator: torch.Generator, like: Tensor) -> None:
        signs = random_signs((self._one.batch_size, *self._one.shape), like, generator)
        self._base = signs if self._turn is None else self._turn(signs)

    @torch.no_grad()
    def changes(self, codes: Codes) -> list[Tensor]:
        """At the output of each use, [*shape]."""
        self._change = self._base
        if codes.number and self._base.dim() > 1:
            signs = codes.of_features(self._base.shape[1], self._number, self._base)
            self._change = self._base * signs.reshape(-1, *(1,) * (self._base.dim() - 2))
        return [_push(piece, self._change) for piece in self._one.pieces]

    def pair(self, changes: Sequence[Tensor], images: Sequence[Tensor | None]) -> Tensor:
        """[B]"""
        return sum_by_sample(self._one, changes, images)

    @torch.no_grad()
    def starts(self, slopes: Sequence[Tensor]) -> list[tuple[GradientEdge, Tensor]]:
        """``dW_n^T b`` at the inputs of all linear maps, b being the slope at the output."""
        starts = []
        for piece, b in zip(self._one.pieces, slopes, strict=True):
            edge = piece.input_edge if isinstance(piece, Outer) else None
            if edge is not None and isinstance(piece, Outer):
                starts.append((edge, _pull_to_input(piece, self._change, b)))
        return starts


class _Turn:
    """From signs along the axes of another basis of the inputs to a change of the weight; another one for each sample."""

    def __init__(self, piece: Outer):
        self._piece = piece
        self._reflectors: tuple[Tensor, Tensor] | None = None
        if piece.one_hot is None and piece.inputs > 1:
            count = min(_AXES, piece.inputs)
            parts = [piece.given_of(part)[0] for part in piece.parts(piece.site.layout.batch_size)]
            means = [torch.stack([some.mean(-1) for some in given.chunk(count, -1)], -1) for given in parts]
            self._reflectors = torch.geqrf(torch.cat(means))  # [B, G, I, axes]

    def __call__(self, signs: Tensor) -> Tensor:
        """Both [B, *shape of the parameter]."""
        if self._reflectors is None:
            return signs
        matrices, (reflectors, factors) = self._piece.as_matrices(signs), self._reflectors
        own = matrices if self._piece.turned else matrices.mT  # [B, G, I, O]
        turned = torch.ormqr(reflectors.to(own.dtype), factors.to(own.dtype), own.contiguous())
        return (turned if self._piece.turned else turned.mT).reshape(signs.shape)


def sum_by_sample(one: Individual, changes: Sequence[Tensor], images: Sequence[Tensor | None]) -> Tensor:
    """``sum over uses of <e_n, w_n>``, [B]; w None where it is zero."""
    triples = zip(one.pieces, changes, images, strict=True)
    sums = [sum_of_samples(e * w, piece.site.layout) for piece, e, w in triples if w is not None]
    if not sums:
        return torch.zeros(one.batch_size, dtype=torch.float64)
    return torch.stack(sums).sum(0, dtype=torch.float64).cpu()


def sum_of_samples(product: Tensor, layout: Layout) -> Tensor:
    """What each sample has of it, [B]. Nothing is moved: time steps of a recurrence are many small ones."""
    if layout.rows:
        each = product.flatten(1).sum(1) if product.dim() > 1 else product
        rows = each.reshape(layout.batch_size, -1) if layout.rows == "major" else each.reshape(-1, layout.batch_size).T
        return rows.sum(1)
    others = [d for d in range(product.dim()) if d != layout.dim]
    return product.sum(others) if others else product


def is_plain(layout: Layout) -> bool:
    """One row for each sample."""
    return layout.dim == 0 and not layout.rows


def _push(piece: Piece, change: Tensor) -> Tensor:
    batch = len(change)
    if isinstance(piece, Direct):
        return piece.broadcast(change.reshape(batch, -1))
    one_hot = piece.one_hot
    if one_hot is None:
        matrices = piece.as_matrices(change)
        parts = [_times(piece, matrices, part) for part in piece.parts(batch)]
        return piece.put_back(parts[0] if len(parts) == 1 else torch.cat(parts))
    places = one_hot.indices.unsqueeze(-1).expand(-1, -1, change.shape[2])
    rows = change.gather(1, places) * one_hot.kept.unsqueeze(-1)  # [B, S, width]
    return piece.put_back(rows.mT.unsqueeze(1))


def _times(piece: Outer, matrices: Tensor, part: slice) -> Tensor:
    given, own = piece.given_of(part).to(matrices.dtype)[0], matrices[part]
    return (own.mT if piece.turned else own) @ given


def _pull_to_input(piece: Outer, change: Tensor, slope: Tensor) -> Tensor:
    b, own = piece.gradient_factor(slope)[0, :, 0], piece.as_matrices(change)[:, 0]  # [B, O, S], [B, L, R]
    return piece.input_seed((own if piece.turned else own.mT) @ b)

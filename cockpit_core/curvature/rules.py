"""Sums of squared individual gradients from what a backward node has saved and the gradient of its output.

For one parameter and V columns: ``total_j += sum_v sum_n sign_{v,n} [J_n^T column_{v,n}]_j^2``. Individual gradients
are never formed for a matrix with one position per sample, and a few samples at a time elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from cockpit_core.kernels.native.columns import Image, Squared, can_take, square_columns

from .autograd_graph import Use, output_shape
from .point import NoCurvature

PIECE = 2**20  # elements of individual gradients and patches formed at once: about what stays in a core's cache
_LONG = 2**15  # gradients longer than this are squared one by one, in place


@dataclass
class Sums:
    """What is accumulated for one parameter: the squares [*shape], and if wanted the squared norms [B].

    piece: how many elements of individual gradients, and of what they are made of, may be formed at once.
    """

    squares: Tensor
    norms: Tensor | None = None
    piece: int = PIECE

    def add(self, squares: Tensor, norms: Tensor) -> None:
        """Both summed over columns already."""
        self.squares += squares.reshape(self.squares.shape)
        if self.norms is not None:
            self.norms += norms

    def add_small(self, g: Tensor, signs: Tensor | None) -> None:
        """g: [V, B, *shape]."""
        g2 = g.square()
        if signs is not None:
            g2 = g2 * signs.reshape(signs.shape + (1,) * (g.dim() - 2))
        self.squares += g2.sum((0, 1)).reshape(self.squares.shape)
        if self.norms is not None:
            self.norms += g2.flatten(2).sum((0, 2))


AddSquares = Callable[[Use, Tensor, "Tensor | None", int, Sums], None]


def _per_sample(b: Tensor, batch_size: int) -> Tensor:
    """[V, B * k, ...] -> [V, B, k, ...]."""
    return b.reshape(b.shape[0], batch_size, -1, *b.shape[2:])


def _add_outer_products(
    rows: Callable[[slice], Tensor], width: int, b: Tensor, signs: Tensor | None, groups: int, sums: Sums
) -> None:
    """g_{v,n} = b_{v,n} a_n^T over positions, for a few samples at a time.

    rows: samples -> a [n, width, positions]; b: [V, B, out, positions]; parameter: out x width / groups elements.
    """
    columns, batch, outs, positions = b.shape
    inner = width // groups
    total = sums.squares.view(outs, inner)
    for part in _blocks(batch, max(columns * outs * inner, width * positions), sums.piece):
        right = rows(part).to(b.dtype)
        n = right.shape[0]
        left = b[:, part].reshape(columns, n, groups, outs // groups, positions).permute(1, 2, 0, 3, 4)
        left = left.reshape(n * groups, columns * (outs // groups), positions)
        g = torch.bmm(left, right.reshape(n * groups, inner, positions).mT)
        g = g.view(n, groups, columns, outs // groups, inner)
        sign = None if signs is None else signs[:, part]
        if sums.norms is not None:
            per_column = torch.linalg.vector_norm(g, dim=(1, 3, 4)).square().T  # [V, n]
            sums.norms[part] += (per_column if sign is None else per_column * sign).sum(0)
        _add_squares(g, sign, total)


def _blocks(batch: int, elements: int, piece: int) -> list[slice]:
    """Samples in blocks of about this many elements, with at least two samples, one for each core."""
    size = max(2, piece // max(1, elements))
    return [slice(begin, min(begin + size, batch)) for begin in range(0, batch, size)]


def _add_squares(g: Tensor, sign: Tensor | None, total: Tensor) -> None:
    """g: [n, groups, V, out / groups, inner]; total: [out, inner]."""
    n, groups, columns, outs, inner = g.shape
    if groups == 1 and outs * inner >= _LONG:
        for i in range(n):
            for v in range(columns):
                total.addcmul_(g[i, 0, v], g[i, 0, v], value=1.0 if sign is None else float(sign[v, i]))
        return
    g2 = g.square_()
    if sign is not None:
        g2 = g2 * sign.T.reshape(n, 1, columns, 1, 1)
    total += g2.sum((0, 2)).reshape(groups * outs, inner)


def _matrix(use: Use, b: Tensor, signs: Tensor | None, batch_size: int, sums: Sums) -> None:
    """The weight of ``a W^T``. With one position ``(b^2)^T a^2``; with several (tokens) their outer products are
    summed first."""
    node: Any = use.node
    a = (node._saved_mat1 if use.kind == "Addmm" else node._saved_self).detach()
    if use.kind == "Addmm" and (node._saved_alpha != 1 or node._saved_beta != 1):
        raise NoCurvature("addmm with factors")
    swapped = not use.transposed  # the parameter itself is [in, out]
    squares = sums.squares.new_zeros(sums.squares.shape[::-1]) if swapped else sums.squares
    inner = Sums(squares, sums.norms, sums.piece)
    if a.shape[0] == batch_size:
        b2 = (b.square() if signs is None else b.square() * signs.unsqueeze(-1)).sum(0)
        a2 = a.square().to(b2.dtype)
        squares.addmm_(b2.T, a2)
        if sums.norms is not None:
            sums.norms += b2.sum(1) * a2.sum(1)
    else:
        left = _per_sample(b, batch_size).mT  # [V, B, O, S]
        right = a.reshape(batch_size, -1, a.shape[-1]).mT
        _add_outer_products(lambda part: right[part], a.shape[-1], left, signs, 1, inner)
    if swapped:
        sums.squares += squares.T


def _matrix_bias(use: Use, b: Tensor, signs: Tensor | None, batch_size: int, sums: Sums) -> None:
    if len(sums.squares.shape) != 1:
        raise NoCurvature("addmm with a matrix in place of the bias")
    sums.add_small(b if b.shape[1] == batch_size else _per_sample(b, batch_size).sum(2), signs)


def pad_spatially(x: Tensor, node: Any) -> Tensor:
    """With the zeros around it that a convolution sees."""
    padding = node._saved_padding
    return F.pad(x, [p for pad in reversed(padding) for p in (pad, pad)]) if any(padding) else x


def patches(x: Tensor, kernel: tuple[int, ...], node: Any) -> Tensor:
    """[n, C, *spatial] -> [n, C * prod(kernel), positions]: what each position of a convolution sees."""
    dims = len(kernel)
    stride, dilation = node._saved_stride, node._saved_dilation
    x = pad_spatially(x, node).contiguous()
    sizes = [(x.shape[2 + d] - dilation[d] * (kernel[d] - 1) - 1) // stride[d] + 1 for d in range(dims)]
    steps = x.stride()
    inside = [s * d for s, d in zip(steps[2:], dilation, strict=True)]
    between = [s * t for s, t in zip(steps[2:], stride, strict=True)]
    view = x.as_strided((*x.shape[:2], *kernel, *sizes), (*steps[:2], *inside, *between))
    return view.reshape(x.shape[0], x.shape[1] * math.prod(kernel), -1)


def square_in_parts(
    node: Any, columns: Tensor, where: Tensor | None, signs: Tensor | None, piece: int
) -> Squared | None:
    """Squares of a convolution's weight by native kernels, from columns at its output or at the places that ``where``
    names; a few samples at a time, because kernels read a copy of the image. None where only the dense way is right."""
    x, out = node._saved_input.detach(), output_shape(node)[2:]
    geometry = (tuple(node._saved_weight.shape[2:]), tuple(node._saved_stride), tuple(node._saved_dilation))
    pieces: list[Squared] = []
    for part in _blocks(len(x), x[0].numel(), piece):
        image = Image.of(pad_spatially(x[part], node), node._saved_groups)
        chosen, sign = None if where is None else where[part], None if signs is None else signs[:, part]
        one = square_columns(columns[:, part], chosen, image, geometry, out, sign)
        if one is None:
            return None
        pieces.append(one)
    if len(pieces) == 1:
        return pieces[0]
    squares = torch.stack([f.squares for f in pieces]).sum(0)
    return Squared(squares, torch.cat([f.norms for f in pieces]), torch.cat([f.sums for f in pieces], 1))


def _convolution(use: Use, b: Tensor, signs: Tensor | None, batch_size: int, sums: Sums) -> None:
    """Weight of a convolution, also transposed, with groups, in one to three dimensions."""
    node: Any = use.node
    x, kernel = node._saved_input.detach(), tuple(node._saved_weight.shape[2:])
    if x.shape[0] != batch_size:
        raise NoCurvature("a convolution over several rows per sample")
    if node._saved_transposed:
        _transposed_convolution(node, x.to(b.dtype), b, signs, kernel, sums)
        return
    squared = square_in_parts(node, b, None, signs, sums.piece) if can_take(b) and x.dtype == b.dtype else None
    if squared is not None:
        sums.add(squared.squares, squared.norms)
        return
    width = x.shape[1] * math.prod(kernel)
    _add_outer_products(
        lambda part: patches(x[part], kernel, node), width, b.flatten(3), signs, node._saved_groups, sums
    )


def _transposed_convolution(
    node: Any, x: Tensor, b: Tensor, signs: Tensor | None, kernel: tuple[int, ...], sums: Sums
) -> None:
    """The roles swap: the output gradient is cut into patches, the input is what they are multiplied with.

    weight: [in, out / groups, *kernel].
    """
    batch, ins, groups = x.shape[0], x.shape[1], node._saved_groups
    for v in range(b.shape[0]):
        for n in range(batch):
            cut = patches(b[v, n : n + 1], kernel, node).reshape(groups, -1, x[n, 0].numel())
            g = x[n].reshape(groups, ins // groups, -1) @ cut.mT  # [groups, in / groups, out / groups * kernel]
            sign = 1.0 if signs is None else float(signs[v, n])
            sums.squares.view(-1).addcmul_(g.reshape(-1), g.reshape(-1), value=sign)
            if sums.norms is not None:
                sums.norms[n] += sign * g.square().sum()


def _channel_sum(use: Use, b: Tensor, signs: Tensor | None, batch_size: int, sums: Sums) -> None:
    """Bias over channels (dimension 1): convolutions, BatchNorm, GroupNorm."""
    g = b.flatten(3).sum(3) if b.dim() > 3 else b  # [V, B * k, C]
    sums.add_small(g if g.shape[1] == batch_size else _per_sample(g, batch_size).sum(2), signs)


def _norm_weight(use: Use, b: Tensor, signs: Tensor | None, batch_size: int, sums: Sums) -> None:
    """Weight of a normalisation: output gradient times normalised input, summed over positions."""
    _norm_bias(use, b * normalised(use.node, use.kind).to(b.dtype), signs, batch_size, sums)


def _norm_bias(use: Use, b: Tensor, signs: Tensor | None, batch_size: int, sums: Sums) -> None:
    if use.kind != "NativeLayerNorm":
        _channel_sum(use, b, signs, batch_size, sums)
        return
    inner = math.prod(sums.squares.shape)
    sums.add_small(b.reshape(b.shape[0], batch_size, -1, inner).sum(2), signs)


def normalised(node: Any, kind: str) -> Tensor:
    x = node._saved_input.detach()
    if kind == "NativeLayerNorm":
        return (x - node._saved_result1) * node._saved_result2
    if kind == "NativeGroupNorm":
        shape = (x.shape[0], node._saved_group, -1)
        mean, inverse = (t.reshape(x.shape[0], -1, 1) for t in (node._saved_result1, node._saved_result2))
        return ((x.reshape(shape) - mean) * inverse).reshape(x.shape)
    mean, variance = node._saved_running_mean, node._saved_running_var
    if node._saved_training:  # only reached with a single sample
        mean, inverse = node._saved_result1, node._saved_result2
    else:
        inverse = torch.rsqrt(variance + node._saved_eps)
    like = (1, -1) + (1,) * (x.dim() - 2)
    return (x - mean.view(like)) * inverse.view(like)


def _broadcast_term(use: Use, b: Tensor, signs: Tensor | None, batch_size: int, sums: Sums) -> None:
    """A parameter that is added to, or multiplied with, an activation: sum over what it was broadcast along."""
    node: Any = use.node
    if use.kind == "Add" and use.role == "bias1" and node._saved_alpha != 1:
        b = b * node._saved_alpha
    elif use.kind == "Mul":
        other = node._saved_other if use.role == "factor0" else node._saved_self
        b = b * other.detach().to(b.dtype)
    operand = (1,) * (b.dim() - 1 - len(use.operand)) + tuple(use.operand)
    g = b.unsqueeze(2) if b.shape[1] == batch_size else _per_sample(b, batch_size)
    summed = [2] + [3 + i for i, size in enumerate(operand[1:]) if size == 1]
    sums.add_small(g.sum(summed).reshape(b.shape[0], batch_size, *sums.squares.shape), signs)


def _prelu(use: Use, b: Tensor, signs: Tensor | None, batch_size: int, sums: Sums) -> None:
    z = use.node._saved_self.detach()  # type: ignore[attr-defined]
    _broadcast_term(use, b * z.clamp_max(0).to(b.dtype), signs, batch_size, sums)


def _embedding(use: Use, b: Tensor, signs: Tensor | None, batch_size: int, sums: Sums) -> None:
    """Rows that one sample looks up several times are added before squaring; never a vocabulary per sample."""
    node: Any = use.node
    if node._saved_scale_grad_by_freq:
        raise NoCurvature("an embedding that scales gradients by frequency")
    indices = node._saved_indices.reshape(batch_size, -1)
    rows = sums.squares.shape[0]
    sample = torch.arange(batch_size, device=indices.device).unsqueeze(1)
    keys, where = torch.unique(sample * rows + indices, return_inverse=True)
    padding = node._saved_padding_idx
    for v in range(b.shape[0]):
        g = b.new_zeros(len(keys), b.shape[-1]).index_add_(0, where.reshape(-1), b[v].reshape(-1, b.shape[-1]))
        g2 = g.square() * (keys % rows != padding).unsqueeze(1)
        if signs is not None:
            g2 = g2 * signs[v, keys // rows].unsqueeze(1)
        sums.squares.index_add_(0, keys % rows, g2)
        if sums.norms is not None:
            sums.norms.index_add_(0, keys // rows, g2.sum(1))


_OWN_WAYS: dict[tuple[str, str], AddSquares] = {
    ("Addmm", "weight"): _matrix,
    ("Mm", "weight"): _matrix,
    ("Addmm", "bias"): _matrix_bias,
    ("Convolution", "weight"): _convolution,
    ("Convolution", "bias"): _channel_sum,
    ("Add", "bias0"): _broadcast_term,
    ("Add", "bias1"): _broadcast_term,
    ("Mul", "factor0"): _broadcast_term,
    ("Mul", "factor1"): _broadcast_term,
    ("PreluKernel", "weight"): _prelu,
    ("Embedding", "weight"): _embedding,
}
_NORM_WAYS: dict[tuple[str, str], AddSquares] = {
    (kind, role): rule
    for kind in ("NativeBatchNorm", "NativeLayerNorm", "NativeGroupNorm")
    for role, rule in (("weight", _norm_weight), ("bias", _norm_bias))
}
WAYS = _OWN_WAYS | _NORM_WAYS

"""Individual gradients of one use of a parameter, as products of two factors that are rarely multiplied out.

A use of a matrix has ``g_n = sum_s l_{n,s} r_{n,s}^T``, s over positions (pixels, tokens, time steps): one factor is the
gradient b of the use's output, the other what the use was given. ``Outer`` hands out both; ``Direct`` hands out the gradient
itself, for parameters that are small (biases, norms). Several columns b at once, [V, ...], share what was given.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from .autograd_graph import output_shape
from .point import NoCurvature
from .rules import normalised, patches
from .sites import Site


@dataclass(frozen=True)
class OneHot:
    """A factor [B, rows, S] with a single 1 per position, at ``indices`` [B, S]; none where ``kept`` [B, S] is 0."""

    indices: Tensor
    kept: Tensor
    rows: int

    def of(self, part: slice) -> OneHot:
        return OneHot(self.indices[part], self.kept[part], self.rows)


@dataclass
class Factors:
    """``left`` [V or 1, B, G, L, S] and ``right`` [V or 1, B, G, R, S]: ``g = left right^T`` in each of G groups."""

    left: Tensor | OneHot
    right: Tensor

    @property
    def positions(self) -> int:
        return int(self.right.shape[4])

    @property
    def groups(self) -> int:
        return int(self.right.shape[2])

    @property
    def columns(self) -> int:
        return max(self.right.shape[0], self.left.shape[0] if isinstance(self.left, Tensor) else 1)

    @property
    def one_is_given(self) -> bool:
        """Has only one of the factors columns? Not where a matrix is used in both ways."""
        return not isinstance(self.left, Tensor) or min(self.left.shape[0], self.right.shape[0]) == 1


class Outer:
    """Linear maps, convolutions (also transposed, with groups) and embeddings.

    keep: bytes that patches of a convolution's input may take; larger patches are cut anew for every block of
    samples. ``kept``: the bytes they take.
    """

    def __init__(self, site: Site, parameter: Tensor, keep: int):
        self.site, self._shape = site, tuple(parameter.shape)
        self._given_left, self._transposed, self._groups = False, False, 1
        self._given: Tensor | None = None
        self._one_hot: OneHot | None = None
        self.kept = 0
        node: Any = site.node
        if site.kind == "Embedding":
            self._read_embedding(node, parameter.shape[0])
        elif site.kind == "Convolution":
            self._read_convolution(node, keep)
        else:
            self._read_matrix(node)

    @property
    def one_hot(self) -> OneHot | None:
        return self._one_hot

    @property
    def groups(self) -> int:
        return self._groups

    @property
    def inputs(self) -> int:
        """Numbers that the weight is multiplied with at one position."""
        return self._one_hot.rows if self._one_hot is not None else int(self.given_of(slice(0, 1)).shape[3])

    @property
    def features(self) -> int:
        """What the weight makes at one position, in each group."""
        return math.prod(self._shape) // self._groups // self.inputs

    @property
    def positions(self) -> int:
        """Of one sample."""
        one_hot = self._one_hot
        return int(self.given_of(slice(0, 1)).shape[4] if one_hot is None else one_hot.indices.shape[1])

    def given_of(self, part: slice) -> Tensor:
        """[1, n, G, I, S]: what the use was given, of some samples."""
        return self._cut_given(part) if self._given is None else self._given[:, part]

    def as_matrices(self, change: Tensor) -> Tensor:
        """[B, *shape of the parameter] -> [B, G, L, R]; one side is what is multiplied with what was given."""
        sides = (self.inputs, -1) if self._given_left else (-1, self.inputs)
        return change.reshape(len(change), self._groups, *sides)

    def parts(self, batch_size: int) -> list[slice]:
        """One, where what was given is kept; else it is cut anew for each sample."""
        return [slice(None)] if self._given is not None else [slice(n, n + 1) for n in range(batch_size)]

    def _read_matrix(self, node: Any) -> None:
        if self.site.kind == "Addmm" and (node._saved_alpha != 1 or node._saved_beta != 1):
            raise NoCurvature("addmm with factors")
        a = self._matrix_input()
        self._given = self._rows(a.unsqueeze(0))
        self._given_left = not self.site.transposed  # the parameter itself is [in, out]

    def _matrix_input(self) -> Tensor:
        node: Any = self.site.node
        return (node._saved_mat1 if self.site.kind == "Addmm" else node._saved_self).detach()

    def _rows(self, b: Tensor) -> Tensor:
        """[V, *shape] -> [V, B, 1, F, S], where the features are the last dimension of ``shape``."""
        b = self.site.layout.samples_first(b)
        return b.reshape(*b.shape[:2], 1, -1, b.shape[-1]).mT

    def _read_embedding(self, node: Any, rows: int) -> None:
        if node._saved_scale_grad_by_freq:
            raise NoCurvature("an embedding that scales gradients by frequency")
        indices = self.site.layout.samples_first(node._saved_indices.unsqueeze(0))[0]
        indices = indices.reshape(indices.shape[0], -1)
        self._one_hot = OneHot(indices, indices != _signed(node._saved_padding_idx), rows)
        self._given_left = True

    def _read_convolution(self, node: Any, keep: int) -> None:
        if self.site.layout.dim != 0:
            raise NoCurvature("a convolution whose samples do not lie along the first dimension")
        self._kernel, self._groups = tuple(node._saved_weight.shape[2:]), node._saved_groups
        self._transposed = self._given_left = bool(node._saved_transposed)
        self._image = self._own_rows(node._saved_input.detach().unsqueeze(0))
        width = self._image.nbytes
        if not self._transposed:
            images, places = self._image.numel() // self._image[0, 0, 0, 0].numel(), output_shape(node)[2:]
            width = images * math.prod(self._kernel) * math.prod(places) * self._image.element_size()
        if width <= keep:
            self.kept = width
            self._given = self._cut_given(slice(None))

    def _own_rows(self, b: Tensor) -> Tensor:
        """[V, rows, ...] -> [V, B, rows of a sample, ...]."""
        b = self.site.layout.samples_first(b)
        return b if self.site.layout.rows else b.unsqueeze(2)

    def _cut_given(self, part: slice) -> Tensor:
        return self._grouped(self._image[:, part] if self._transposed else self._cut(self._image[:, part]))

    def _cut(self, images: Tensor) -> Tensor:
        """[V, n, rows, C, *spatial] -> [V, n, rows, C * kernel, positions]."""
        made = patches(images.flatten(0, 2), self._kernel, self.site.node)
        return made.reshape(*images.shape[:3], *made.shape[1:])

    def _grouped(self, b: Tensor) -> Tensor:
        """[V, n, rows, C, ...] -> [V, n, G, C / G, S]: the rows of a sample are more positions."""
        b = b.flatten(4) if b.dim() > 4 else b.unsqueeze(4)
        b = b.squeeze(2) if b.shape[2] == 1 else b.transpose(2, 3).flatten(3)
        return b.reshape(*b.shape[:2], self._groups, b.shape[2] // self._groups, b.shape[3])

    def arrange(self, b: Tensor) -> Tensor:
        """[V, *shape of the node's output] -> [V, B, ...], so that a block of samples can be taken from it."""
        return self._own_rows(b) if self.site.kind == "Convolution" else self._rows(b)

    def gradient_sizes(self, slope: Tensor | None) -> Tensor:
        """How large the gradient of the output is at each position, [B, S]; zero where there is none."""
        if slope is None:
            return torch.zeros(self.site.layout.batch_size, self.positions)
        made = self.factors(self.arrange(slope.detach().unsqueeze(0)), slice(None))
        b = made.right if self._given_left else made.left
        assert isinstance(b, Tensor)
        return b[0].square().sum((1, 2))

    def factors(self, arranged: Tensor, part: slice) -> Factors:
        """For some samples of what ``arrange`` has made."""
        ours = arranged[:, part]
        if self.site.kind == "Convolution":
            ours = self._grouped(self._cut(ours) if self._transposed else ours)
        if self._one_hot is not None:
            return Factors(self._one_hot.of(part), ours)
        given = self.given_of(part).to(ours.dtype)
        return Factors(given, ours) if self._given_left else Factors(ours, given)

    def put_back(self, e: Tensor) -> Tensor:
        """The reverse of how gradients of the output are read: [B, G, F, S] -> the output's shape."""
        e, shape, layout = e.flatten(1, 2), output_shape(self.site.node), self.site.layout  # [B, F, S]
        if self.site.kind != "Convolution":
            own = shape[1:] if layout.rows else tuple(n for d, n in enumerate(shape) if d != layout.dim)
            inner = (shape[0] // len(e), *own) if layout.rows else own
            return layout.undo(e.mT.reshape(1, len(e), *inner), shape)[0]
        rows = shape[0] // len(e)
        e = e.reshape(*e.shape[:2], rows, -1).transpose(1, 2)  # [B, rows, F, S]
        e = self._uncut(e, shape) if self._transposed else e.reshape(len(e), rows, *shape[1:])
        return layout.undo((e if layout.rows else e[:, 0]).unsqueeze(0), shape)[0]

    def _uncut(self, e: Tensor, shape: tuple[int, ...]) -> Tensor:
        """The transpose of ``_cut``: [n, rows, C * kernel, positions] -> [n, rows, C, *spatial]."""
        with torch.enable_grad():
            image = e.new_zeros(1, *e.shape[:2], *shape[1:]).requires_grad_()
            (made,) = torch.autograd.grad(self._cut(image), image, e.unsqueeze(0))
        return made[0]

    @property
    def input_edge(self) -> GradientEdge | None:
        """Where the gradient of what this use was given goes, if that depends on parameters; only for linear maps."""
        if self.site.kind not in ("Addmm", "Mm"):
            return None
        below, number = self.site.node.next_functions[1 if self.site.kind == "Addmm" else 0]
        return None if below is None else GradientEdge(below, number)

    def input_seed(self, c: Tensor) -> Tensor:
        """The reverse of how the input was read: [B, I, S] -> its shape."""
        rows, layout = c.mT.unsqueeze(0), self.site.layout  # [1, B, S, I]
        return layout.undo(rows if layout.rows else rows[:, :, 0], self._matrix_input().shape)[0]

    @property
    def turned(self) -> bool:
        """Does the matrix map its rows to its columns, so that the gradient of the output is the right factor?"""
        return self._given_left

    def gradient_factor(self, b: Tensor) -> Tensor:
        """Of a linear map: [*shape of the output] -> [1, B, 1, O, S]."""
        return self._rows(b.unsqueeze(0))


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


class Direct:
    """Biases, weights of normalisations, parameters that are added or multiplied by broadcasting."""

    kept = 0

    def __init__(self, site: Site, shape: tuple[int, ...]):
        self.site = site
        node: Any = site.node
        self._factor: Tensor | None = None
        if site.kind.startswith("Native") and site.role == "weight":
            if site.kind == "NativeBatchNorm" and node._saved_training:
                raise NoCurvature("BatchNorm in training mode mixes the samples")
            self._factor = normalised(node, site.kind)
        elif site.kind == "Mul":
            self._factor = (node._saved_other if site.role == "factor0" else node._saved_self).detach()
        elif site.kind == "PreluKernel":
            self._factor = node._saved_self.detach().clamp_max(0)
        elif site.kind == "Add" and site.role == "bias1" and node._saved_alpha != 1:
            self._factor = torch.tensor(float(node._saved_alpha))
        elif site.kind == "Addmm" and (node._saved_alpha != 1 or node._saved_beta != 1 or len(shape) != 1):
            raise NoCurvature("addmm with factors, or with a matrix in place of the bias")

    def gradient(self, b: Tensor) -> Tensor:
        """[V, *shape of the node's output] -> [V, B, elements]: summed over all that the parameter was broadcast along."""
        b = b if self._factor is None else b * self._factor.to(b)
        layout, rank = self.site.layout, b.dim() - 1
        axes = self._axes(rank)
        if layout.dim in axes:  # 0 where the rows of dimension 0 are those of several samples
            raise NoCurvature("a parameter with an entry per sample")
        # Behind V and B the other dimensions follow in order, with one of positions before them where rows were cut.
        others = [d for d in range(rank) if layout.rows or d != layout.dim]
        summed = [2 + i for i, d in enumerate(others) if d not in axes]
        slopes = layout.samples_first(b)
        slopes = slopes.sum(summed) if summed else slopes
        return slopes.reshape(*slopes.shape[:2], -1)

    def broadcast(self, change: Tensor) -> Tensor:
        """The transpose of ``gradient``: [B, elements] -> the output's shape."""
        shape, layout = output_shape(self.site.node), self.site.layout
        axes, batch = self._axes(len(shape)), len(change)
        if layout.dim in axes:
            raise NoCurvature("a parameter with an entry per sample")
        others = [d for d in range(len(shape)) if layout.rows or d != layout.dim]
        full = [shape[d] // batch if d == 0 and layout.rows else shape[d] for d in others]
        narrow = [size if d in axes else 1 for d, size in zip(others, full, strict=True)]
        wide = change.reshape(1, batch, *narrow).expand(1, batch, *full)
        result = layout.undo(wide, shape)[0]
        return result if self._factor is None else result * self._factor.to(result)

    def _axes(self, rank: int) -> list[int]:
        """Which dimensions of the output the parameter has entries along."""
        kind = self.site.kind
        if kind in ("Convolution", "NativeBatchNorm", "NativeGroupNorm"):
            return [1]
        operand = (1,) * (rank - len(self.site.operand)) + tuple(self.site.operand)
        if kind == "PreluKernel" and len(self.site.operand) == 1 and rank > 1:
            operand = (1, *self.site.operand, *(1,) * (rank - 2))
        return [d for d, size in enumerate(operand) if size != 1]


Piece = Outer | Direct


def make_piece(site: Site, parameter: Tensor, keep: int) -> Piece:
    if site.role == "weight" and site.kind in ("Addmm", "Mm", "Convolution", "Embedding"):
        return Outer(site, parameter, keep)
    return Direct(site, tuple(parameter.shape))

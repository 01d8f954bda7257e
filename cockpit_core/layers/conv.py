"""Convolutions and transposed convolutions in one, two and three dimensions: stride, padding, dilation, groups."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cockpit_core.kernels import AnyBins
from cockpit_core.kernels.native import dense
from cockpit_core.kernels.native.columns import Image, can_take, square_columns
from cockpit_core.kernels.native.comparing import MOST_COMPARED
from cockpit_core.kernels.native.convolving import can_walk, reduce_convolution, widen_space
from cockpit_core.kernels.native.reducing import Reduced, can_reduce
from cockpit_core.layers import ways
from cockpit_core.layers.contribution import Contribution, Rows
from cockpit_core.layers.registry import Call, match_dtype, rule, samples_first
from cockpit_core.layers.scratch import Scratch

Sizes = tuple[int, ...]
RUNS, RUN = 32, 64
"""Output gradients that are looked at, to see how many are zero: single ones would each be waited for."""


def spread_runs(tensor: Tensor) -> Tensor:
    """Runs of neighbours, evenly spread over all of it; all, where there are not more."""
    flat = tensor.reshape(-1)
    if flat.shape[0] <= RUNS * RUN:
        return flat
    return flat.as_strided((RUNS, RUN), ((flat.shape[0] - RUN) // (RUNS - 1), 1), flat.storage_offset())


def view_patches(padded: Tensor, kernel: Sizes, stride: Sizes, dilation: Sizes, out: Sizes) -> Tensor:
    """All patches as a view [n, channels, *kernel, *out]; nothing is copied. Kernel positions outermost, so that
    copying it later runs along rows of the image (twice as fast as im2col in the other order)."""
    batch, channel, *space = padded.stride()
    steps = [s * d for s, d in zip(space, dilation, strict=True)]
    jumps = [s * t for s, t in zip(space, stride, strict=True)]
    return padded.as_strided((*padded.shape[:2], *kernel, *out), (batch, channel, *steps, *jumps))


class Patches(Contribution):
    """``g_n[o, c, k] = sum_s left_n[o, s] image_n[c, patch(k, s)]``: formed by one small product per sample.

    ``left`` is [B, groups * rows, *out] (output gradients of a convolution, inputs of a transposed one), ``image`` the
    padded other side, given as what zeros are to be put ``around`` (before and behind each dimension): kernels do so in
    passing. ``g_n . V`` is one convolution of the image with V, then a dot product with ``left``.
    """

    makes_anew = True

    def __init__(
        self,
        left: Tensor,
        image: Tensor,
        geometry: tuple[Sizes, Sizes, Sizes],
        groups: int,
        shape: torch.Size,
        scale: float,
        around: Sizes = (),
    ):
        self.left, self.inner, self.geometry, self.groups = left, image, geometry, groups
        self.around, self.padded = around if any(around) else (), None if any(around) else image
        self.out = tuple(left.shape[2:])
        self.walkable: bool | None = None
        self.sparse: bool | None = None
        super().__init__(left.shape[0], shape, scale)

    @property
    def image(self) -> Tensor:
        if self.padded is None:
            pairs = [self.around[k : k + 2] for k in range(0, len(self.around), 2)]
            self.padded = F.pad(self.inner, [size for pair in reversed(pairs) for size in pair])
        return self.padded

    @property
    def floats_per_sample(self) -> int:
        kernel = math.prod(self.geometry[0])
        return self.shape.numel() + self.inner.shape[1] * kernel * math.prod(self.out)

    def make(self, lo: int, hi: int, scratch: Scratch) -> Tensor:
        kernel, stride, dilation = self.geometry
        n, groups = hi - lo, self.groups
        patches = view_patches(self.image[lo:hi], kernel, stride, dilation, self.out)
        copied = scratch.take("patches", tuple(patches.shape), patches).copy_(patches)
        columns = copied.view(n * groups, -1, math.prod(self.out))  # [n g, c k, S]
        left = self.left[lo:hi].reshape(n * groups, -1, math.prod(self.out))  # [n g, o, S]
        formed = scratch.take("gradients", (n * groups, left.shape[1], columns.shape[1]), left)
        return torch.bmm(left, columns.transpose(1, 2), out=formed).view(n, *self.shape)

    def reduce(self, directions: list[Tensor], bins: AnyBins | None, compared: int = 0) -> Reduced | None:
        """From the nonzero entries of ``left`` alone, where they are few: behind a ReLU and a pooling one in eight. Else,
        and where something is not finite, from all."""
        if not can_reduce(self.left, len(directions)) or not self._can_walk():
            return None
        reduced = self._walk(directions, bins) if self._is_sparse() else None
        return self._walk_all(directions, bins, compared, self.samples) if reduced is None else reduced

    def _walk(self, directions: list[Tensor], bins: AnyBins | None) -> Reduced | None:
        shape = tuple(self.shape)
        return reduce_convolution(
            self.left, self.inner, self.geometry, self.groups, shape, self.scale, directions, bins, self.around
        )

    def _walk_all(self, directions: list[Tensor], bins: AnyBins | None, compared: int, samples: int) -> Reduced:
        left, inner, shape = self.left[:samples], self.inner[:samples], tuple(self.shape)
        return dense.reduce_convolution(
            left, inner, self.geometry, self.groups, shape, self.scale, directions, bins, self.around, compared
        )

    def compares(self, samples: int) -> bool:
        return samples <= MOST_COMPARED and can_reduce(self.left, 0) and self._can_walk()

    def compare(self, samples: int) -> Tensor:
        reduced = self._walk_all([], None, samples, samples)
        assert reduced.gram is not None
        return reduced.gram

    def _can_walk(self) -> bool:
        if self.walkable is None:
            space = widen_space(tuple(self.inner.shape[2:]), self.around)
            self.walkable = can_walk(self.inner, self.left, math.prod(space))
        return self.walkable

    def _is_sparse(self) -> bool:
        if not self._can_walk():
            return False
        if self.sparse is None:
            some = spread_runs(self.left)
            number = np.count_nonzero(some.numpy()) if some.is_cpu else torch.count_nonzero(some)
            self.sparse = int(number) <= ways.SPARSE * some.numel()
        return self.sparse

    def walks_over_all(self) -> bool:
        """Is ``reduce`` a walk over all positions?"""
        return self._can_walk() and not self._is_sparse()

    def squares(self) -> Tensor | None:
        """In one pass like ``reduce``."""
        if not can_take(self.left) or not self._is_sparse():
            return None
        factor = self.left.new_full((1, self.samples), self.scale**2)  # squares of unscaled gradients may be too small
        image = Image.of(self.image, self.groups)
        squared = square_columns(self.left.unsqueeze(0), None, image, self.geometry, self.out, factor)
        return None if squared is None else squared.squares.reshape(self.shape)

    def project(self, direction: Tensor) -> Tensor:
        reduced = self._walk([direction], None) if can_reduce(self.left, 1) and self._is_sparse() else None
        if reduced is not None:
            return reduced.dots[:, 0].to(direction.dtype)
        kernel, stride, dilation = self.geometry
        conv = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[len(kernel)]
        response = conv(self.image, direction.reshape(self.shape), None, stride, 0, dilation, self.groups)
        window: tuple[Any, ...] = (..., *(slice(0, size) for size in self.out))
        return (response[window] * self.left).flatten(1).sum(1) * self.scale


def pad_input(module: nn.modules.conv._ConvNd, a: Tensor) -> tuple[Tensor, Sizes]:
    """The input, and the zeros that are still to be put around it."""
    both = module._reversed_padding_repeated_twice
    if any(both) and module.padding_mode != "zeros":
        return F.pad(a, both, mode=module.padding_mode), ()
    return a, turn_round(both)


def turn_round(padding: list[int]) -> Sizes:
    """``F.pad`` begins with the last dimension."""
    return tuple(size for k in range(len(padding) - 2, -1, -2) for size in padding[k : k + 2])


@rule(nn.Conv1d, nn.Conv2d, nn.Conv3d)
def convolution(call: Call, b: Tensor, scale: float) -> dict[str, Contribution]:
    module: nn.modules.conv._ConvNd = call.module  # type: ignore[assignment]
    weight = module.weight
    a = match_dtype(samples_first(call.input.to(b.dtype), call, weight.dim() - 1), weight)
    b = match_dtype(samples_first(b, call, weight.dim() - 1), weight)
    a, b, calls = fold_positions(a, weight.dim()), fold_positions(b, weight.dim()), b.dim() - weight.dim()
    geometry = (tuple(module.kernel_size), tuple(module.stride), tuple(module.dilation))
    image, around = pad_input(module, a)
    parts: dict[str, Contribution] = {
        "weight": Patches(b.contiguous(), image, geometry, module.groups, weight.shape, scale, around)
    }
    if module.bias is not None:
        parts["bias"] = Rows(b.flatten(2).sum(2), module.bias.shape, scale)
    return regroup(parts, call.batch_size) if calls else parts


@rule(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
def transposed_convolution(call: Call, b: Tensor, scale: float) -> dict[str, Contribution]:
    """The transpose of a convolution: its input plays the output gradient's part, and the other way round."""
    module: nn.modules.conv._ConvTransposeNd = call.module  # type: ignore[assignment]
    weight = module.weight
    a = match_dtype(samples_first(call.input.to(b.dtype), call, weight.dim() - 1), weight)
    b = match_dtype(samples_first(b, call, weight.dim() - 1), weight)
    a, b, calls = fold_positions(a, weight.dim()), fold_positions(b, weight.dim()), b.dim() - weight.dim()
    geometry = (tuple(module.kernel_size), tuple(module.stride), tuple(module.dilation))
    around = turn_round(padding_of_transposed(module, b, a))
    parts: dict[str, Contribution] = {
        "weight": Patches(a.contiguous(), b, geometry, module.groups, weight.shape, scale, around)
    }
    if module.bias is not None:
        parts["bias"] = Rows(b.flatten(2).sum(2), module.bias.shape, scale)
    return regroup(parts, call.batch_size) if calls else parts


def padding_of_transposed(module: nn.modules.conv._ConvTransposeNd, b: Tensor, a: Tensor) -> list[int]:
    """What must surround the output so that every input position sees a whole window."""
    padding: list[int] = []
    sizes = zip(
        module.kernel_size, module.stride, module.dilation, module.padding, a.shape[2:], b.shape[2:], strict=True
    )
    for kernel, stride, dilation, pad, inner, outer in reversed(list(sizes)):
        reach = (inner - 1) * stride + dilation * (kernel - 1) + 1
        padding += [int(pad), max(0, reach - outer - int(pad))]
    return padding


def fold_positions(tensor: Tensor, dim: int) -> Tensor:
    """[B, k, C, *space] of images that are k to a sample becomes [B k, C, *space]."""
    return tensor.flatten(0, tensor.dim() - dim) if tensor.dim() > dim else tensor


class Regrouped(Contribution):
    """k consecutive entries of ``part`` belong to one sample: sum them."""

    def __init__(self, part: Contribution, samples: int):
        self.part, self.each = part, part.samples // samples
        super().__init__(samples, part.shape, 1.0)

    @property
    def floats_per_sample(self) -> int:
        return self.part.floats_per_sample * self.each

    def make(self, lo: int, hi: int, scratch: Scratch) -> Tensor:
        formed = self.part.form(lo * self.each, hi * self.each, scratch)
        return formed.unflatten(0, (hi - lo, self.each)).sum(1)

    def project(self, direction: Tensor) -> Tensor | None:
        projections = self.part.project(direction)
        return None if projections is None else projections.unflatten(0, (self.samples, self.each)).sum(1)


def regroup(parts: dict[str, Contribution], samples: int) -> dict[str, Contribution]:
    return {name: Regrouped(part, samples) for name, part in parts.items()}

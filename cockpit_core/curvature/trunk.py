"""Blocks in a row from the data up (see blocks.py), kept out of second derivatives and crossed by hand.

With P the choice that ReLU and pooling made, a block is ``z = P (conv(a, W) + b)``. A direction changes it by
``dz = P (conv(a, dW) + conv(da, W) + db)``, needed only at the positions that P chose. On the way back, with l the
gradient of z and dl its change, both zero elsewhere: ``dW = conv_weight(a, dl) + conv_weight(da, l)`` and
``da = conv_input(dl, W) + conv_input(l, dW)``. What lies above the topmost z is left to autograd.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from cockpit_core.kernels.native.columns import Image, gather_columns, sum_column

from .autograd_graph import output_shape, reachable, variable_of
from .blocks import Block, find_blocks
from .point import NoCurvature
from .rules import pad_spatially

DENSE = 0.4  # with more entries that are not zero, torch's own second derivative is faster at any rate
_LANES, _OVERHEAD, _SLOWER, _MARGIN = 16, 8, 3.0, 0.8
"""Of the rule in ``_saving``, fitted to products of four networks that ``benchmarks/blocks.py`` and 3C3D have."""


class _Layer:
    """One block with what it saved, as the kernels read it."""

    def __init__(self, block: Block):
        node: Any = block.convolution
        self.block, self.padding = block, tuple(node._saved_padding)
        self.weight: Tensor = node._saved_weight.detach()
        self.image = Image.of(pad_spatially(node._saved_input.detach(), node), 1)
        self.live = block.where >= 0
        self.space = output_shape(block.top)[2:]

    def push(self, change: Image | None, weight: Tensor, bias: Tensor | None) -> Tensor:
        """``dz`` [n, *space, channels], from ``da`` and a direction of the parameters."""
        pairs = [(self.image, weight)] if change is None else [(self.image, weight), (change, self.weight)]
        start = weight.new_zeros(self.live.shape) if bias is None else self.live * bias
        image = gather_columns(pairs, self.block.where, self.block.geometry, self.block.out, start)
        return image.unflatten(1, self.space)

    def weigh(self, slope: Tensor, image: Image) -> tuple[Tensor, Tensor]:
        """``conv_weight(image, slope)`` and the bias's, of slope [n, *space, channels]."""
        block = self.block
        return _finite(sum_column(slope.movedim(-1, 1), block.where, image, block.geometry, block.out))

    def send(self, slope: Tensor, weight: Tensor) -> Tensor:
        """``conv_input(slope, weight)``, both with the block's channels once or twice."""
        where, columns = self.block.where, slope.movedim(-1, 1).unsqueeze(0)
        where = where if slope.shape[-1] == where.shape[-1] else torch.cat([where, where], -1)
        return _finite(self.block.send_through(columns, where, weight))[0].movedim(1, -1)


def _finite(image: Any) -> Any:
    if image is None:
        raise NoCurvature("the curvature is not finite at this step")
    return image


class Trunk:
    """``leaves``: weight and bias of each block. Remembers from the last push what it needs on the way back."""

    def __init__(self, blocks: Sequence[Block]):
        self._layers = [_Layer(block) for block in blocks]  # from the data up
        self._own = [parameters_of(block.convolution) for block in blocks]
        self.leaves = [leaf for own in self._own for leaf in own]
        self.edge = GradientEdge(blocks[-1].top, 0)
        self._slopes: list[Tensor] = []
        self._pushed: list[tuple[list[Image | None], list[list[Tensor]]]] = []

    def learn(self, slope: Tensor) -> None:
        """The gradient of the loss at the top: from now on the way back is that of the Hessian, not of Gauss-Newton."""
        slopes = [slope.detach().movedim(1, -1).contiguous()]
        for layer in reversed(self._layers[1:]):
            slopes.insert(0, layer.send(slopes[0], layer.weight))
        self._slopes = slopes

    def push_all(self, vectors: Sequence[Tensor], batched: bool) -> Tensor:
        """``dz`` at the top for a direction of the leaves, or for several in a leading dimension."""
        self._pushed = []
        if not batched:
            return self._push(vectors)
        return torch.stack([self._push([v[k] for v in vectors]) for k in range(len(vectors[0]))])

    def pull_all(self, slope: Tensor, batched: bool) -> list[Tensor]:
        """The gradients of the leaves, in the order of the directions that were pushed."""
        if not batched:
            return self._pull(slope, 0)
        each = [self._pull(one, k) for k, one in enumerate(slope)]
        return [torch.stack(parts) for parts in zip(*each, strict=True)]

    def _push(self, vectors: Sequence[Tensor]) -> Tensor:
        rest = iter(vectors)
        directions = [[next(rest) for _ in own] for own in self._own]
        changes: list[Image | None] = []
        image = vectors[0]
        for number, (layer, (weight, *bias)) in enumerate(zip(self._layers, directions, strict=True)):
            changes.append(Image.channels_last(image, layer.padding) if number else None)
            image = layer.push(changes[-1], weight, bias[0] if bias else None)
        self._pushed.append((changes, directions))
        return image.movedim(-1, 1)

    def _pull(self, slope: Tensor, number: int) -> list[Tensor]:
        slope, gradients = slope.movedim(1, -1).contiguous(), list[Tensor]()
        for k in reversed(range(len(self._layers))):
            layer = self._layers[k]
            weight, bias = layer.weigh(slope, layer.image)
            filters = layer.weight
            if self._slopes:
                changes, directions = self._pushed[number]
                change = changes[k]
                weight = weight if change is None else weight + layer.weigh(self._slopes[k], change)[0]
                slope, filters = torch.cat([slope, self._slopes[k]], -1), torch.cat([filters, directions[k][0]])
            gradients[:0] = [weight, bias][: len(self._own[k])]
            slope = layer.send(slope, filters) if k else slope
        return gradients


def parameters_of(convolution: Node) -> list[Tensor]:
    """Weight and bias, if they are leaves."""
    leaves = [variable_of(below) for below, _ in convolution.next_functions[1:] if below is not None]
    return [leaf for leaf in leaves if leaf is not None]


def find_trunks(root: Tensor, parameters: Sequence[Tensor]) -> list[Trunk]:
    """The trunks on the way to ``root``. A weight that is shared, cast, computed or not trained ends one."""
    if root.grad_fn is None:
        return []
    nodes = reachable([root.grad_fn])
    count = Counter(below for node in nodes for below, _ in node.next_functions if below is not None)
    wanted = {id(p) for p in parameters}
    trunks = []
    blocks = [b for b in find_blocks(root.grad_fn, None, math.inf, DENSE) if _is_trained(b.convolution, wanted, count)]
    above = {block.below[0]: block for block in blocks}
    for block in blocks:
        if block.below[0] is not None:
            continue
        row = [block]
        while count[row[-1].top] == 1 and (higher := above.get(row[-1].top)) is not None:
            row.append(higher)
        savings = [sum(_saving(b) for b in row[: k + 1]) for k in range(len(row))]
        best = max(savings)
        if best > 0:
            trunks.append(Trunk(row[: savings.index(best) + 1]))
    return trunks


def _saving(block: Block) -> float:
    """What a product saves, counted in multiplied vectors. An entry costs as many as its patch has, and some to find
    it, each three times as much as in torch's convolutions, which take every position. Data need no gradient and do
    not change."""
    node: Any = block.convolution
    channels, *kernel = node._saved_weight.shape[1:]
    row = channels * (kernel[-1] if node._saved_dilation[-1] == 1 else 1)
    vectors = channels * math.prod(kernel) // row * math.ceil(row / _LANES)
    dense = math.prod(output_shape(block.convolution)) * channels * math.prod(kernel) / (0.7 * _LANES)
    convolutions = 2 if block.below[0] is None else 6
    return convolutions * (_MARGIN * dense - _SLOWER * block.entries * (vectors + _OVERHEAD))


def _is_trained(convolution: Node, wanted: set[int], count: Counter[Node]) -> bool:
    """Are the weight and the bias (if there is one) used nowhere else?"""
    (weight, _), *rest = convolution.next_functions[1:]
    own = [below for below, _ in [(weight, 0), *rest] if below is not None]
    leaves = [variable_of(below) for below in own]
    return weight is not None and all(id(leaf) in wanted for leaf in leaves) and all(count[below] == 1 for below in own)

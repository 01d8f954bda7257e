"""Convolutions with the ReLU and the pooling behind them, crossed by columns in one stroke.

Behind a ReLU and a pooling about one in eight output gradients of a convolution is not zero, and the same ones for
every column. Torch writes the zeros, reads them, masks them and multiplies with them; here columns go from what the
pooling gave out to the convolution's input, and the squares of its parameters are taken on the way. Only where every path
from where the columns start leads through the block: what comes from elsewhere would be missing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node

from cockpit_core.kernels.native.columns import can_take, send_columns
from cockpit_core.kernels.native.convolving import Geometry

from .autograd_graph import Use, kind_of, output_shape, reachable
from .rules import PIECE, Sums, square_in_parts

_POOLINGS = ("MaxPool2DWithIndices", "MaxPool3DWithIndices")
_LINKS = ("Relu", *_POOLINGS)
DENSE = 0.6  # with more entries than this that are not zero, torch's own way back is as fast


@dataclass(frozen=True)
class Block:
    """``top`` is the last node of it, ``where`` [B, places, channels] the convolution's output position behind each of
    top's outputs, -1 behind those that a ReLU has cut off; ``entries`` are the others.
    """

    top: Node
    convolution: Node
    where: Tensor
    entries: int

    @property
    def _node(self) -> Any:
        return self.convolution

    @property
    def out(self) -> tuple[int, ...]:
        return output_shape(self.convolution)[2:]

    @property
    def below(self) -> tuple[Node | None, int]:
        return self.convolution.next_functions[0]

    @property
    def geometry(self) -> Geometry:
        node = self._node
        kernel = tuple(node._saved_weight.shape[2:])
        return kernel, tuple(node._saved_stride), tuple(node._saved_dilation)

    def square(self, columns: Tensor, signs: Tensor | None, uses: list[Use], sums: dict[str, Sums]) -> bool:
        """Add the squares of the convolution's own parameters; False if they must be computed another way."""
        piece = min((sums[use.name].piece for use in uses), default=PIECE)
        squared = square_in_parts(self.convolution, columns, self.where, signs, piece)
        if squared is None:
            return False
        for use in uses:
            if use.role == "weight":
                sums[use.name].add(squared.squares, squared.norms)
            else:
                sums[use.name].add_small(squared.sums, signs)
        return True

    def send(self, columns: Tensor) -> Tensor | None:
        """Columns at the convolution's input; None if they must be computed another way."""
        return self.send_through(columns, self.where, self._node._saved_weight.detach())

    def send_through(self, columns: Tensor, where: Tensor, weight: Tensor) -> Tensor | None:
        """The same through another weight, which may have more rows."""
        space, padding = tuple(self._node._saved_input.shape[2:]), tuple(self._node._saved_padding)
        return send_columns(columns, where, weight, self.geometry, padding, space, self.out)


def find_blocks(root: Node, batch_size: int | None, room: float, dense: float = DENSE) -> list[Block]:
    """The blocks anywhere below ``root`` of which at most the share ``dense`` is not zero and that fit into ``room``
    bytes."""
    nodes = reachable([root])
    uses = [(below, node) for node in nodes for below, _ in node.next_functions if below is not None]
    count = Counter(below for below, _ in uses)
    reader = {below: node for below, node in uses if count[below] == 1}
    blocks: list[Block] = []
    for node in nodes:
        if _is_plain(node, batch_size) and _bytes_at(node, reader) <= room:
            block = _block_at(node, reader, dense)
            if block is not None:
                blocks.append(block)
                room -= block.where.nbytes
    return blocks


def _is_plain(node: Node, batch_size: int | None) -> bool:
    """A convolution of one row per sample (unless that does not matter), without groups, on the CPU, of one dtype."""
    if kind_of(node) != "Convolution":
        return False
    of: Any = node
    given, weight = of._saved_input, of._saved_weight
    alike = given.dtype == weight.dtype == node._input_metadata[0].dtype
    whole = not of._saved_transposed and of._saved_groups == 1 and batch_size in (None, len(given))
    return whole and alike and can_take(weight)


def _bytes_at(convolution: Node, reader: dict[Node, Node]) -> int:
    """What finding a block takes at most: its places as 64-bit numbers, and then as 32-bit ones."""
    top = convolution
    while (node := reader.get(top)) is not None and kind_of(node) in _LINKS:
        top = node
    return 12 * torch.Size(output_shape(top)).numel()


def _block_at(convolution: Node, reader: dict[Node, Node], dense: float) -> Block | None:
    """With the ReLU and the pooling behind it, in either order, each at most once."""
    top, kept, chosen = convolution, None, None
    while (node := reader.get(top)) is not None:
        of: Any = node
        kind = kind_of(node)
        if kind == "Relu" and kept is None:
            kept = of._saved_result.detach()
        elif kind in _POOLINGS and chosen is None:
            chosen = of._saved_result1
            if kept is not None:
                kept = kept.flatten(2).gather(2, chosen.flatten(2)).view(chosen.shape)
        else:
            break
        top = node
    if kept is None and chosen is None:
        return None
    live = None if kept is None else ~(kept <= 0)  # NaN passes, as in torch
    return _sparse_block(top, convolution, live, chosen, dense)


def _sparse_block(
    top: Node, convolution: Node, live: Tensor | None, chosen: Tensor | None, dense: float
) -> Block | None:
    batch, channels, *out = output_shape(convolution)
    positions = torch.Size(out).numel()
    if chosen is None:
        assert live is not None
        chosen = torch.arange(positions, device=live.device).view(1, 1, *out).expand(live.shape)
    where = chosen if live is None else torch.where(live, chosen, -1)
    entries = where.numel() if live is None else int(torch.count_nonzero(live))
    if entries > dense * batch * channels * positions:
        return None
    return Block(top, convolution, where.flatten(2).permute(0, 2, 1).to(torch.int32).contiguous(), entries)


def choose_cuts(source: Node, blocks: list[Block], users: set[Node]) -> list[tuple[Block, set[Node]]]:
    """Blocks that all paths from ``source`` to what lies below them lead through, from above to below; each with the
    nodes of ``users`` that lie between it and what is above it.
    """
    cuts: list[tuple[Block, set[Node]]] = []
    start: Node | None = source
    left = list(blocks)
    while start is not None:
        here = set(reachable([start]))
        at = _highest_cut(start, [b for b in left if b.top in here], users)
        if at is None:
            break
        block, above = at
        cuts.append((block, above))
        left.remove(block)
        start = block.below[0]
    return cuts


def _highest_cut(start: Node, blocks: list[Block], users: set[Node]) -> tuple[Block, set[Node]] | None:
    best: tuple[Block, set[Node]] | None = None
    for block in blocks:
        above = set(reachable([start], stop=[block.top])) & users
        under = set(reachable([block.below[0]])) & users
        needed = under or block.convolution in users
        if above & under or block.convolution in above or not needed:
            continue
        if best is None or len(above) < len(best[1]):
            best = block, above
    return best

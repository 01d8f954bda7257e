"""Exact diagonals as sums of squares: columns are sent back through the user's graph, a few at a time.

Gauss-Newton: with ``d^2 loss/d outputs^2 = sum_v c_v c_v^T`` per sample, ``diag(G) = sum_v sum_n (J_n^T c_{v,n})^2``.
Hessian: differentiating twice through a graph of nodes gives ``H = G + sum_k J_k^T (lambda_k d^2 node_k) J_k``, k over
all nodes, J_k the Jacobian of the node's input and lambda_k the gradient of its output. Linear and piecewise linear
nodes add nothing; a product of an activation with a parameter adds nothing to the diagonal of a parameter that is used
once; a function of each element by itself adds ``phi''(z) lambda`` on the diagonal of its input: more columns, with
signs. So the same squares give the exact diagonal, for chains and for networks with branches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from .autograd_graph import Network, output_shape
from .blocks import Block, choose_cuts, find_blocks
from .elementwise import SECOND_DERIVATIVES
from .loss_hessian import LossHessian, Seeds
from .point import NoCurvature, Point, explained
from .rules import PIECE, WAYS, Sums

SMALL = 16 * 2**20  # bytes of gradients up to which several columns at once are faster than one after the other


def _numel(shape: Sequence[int]) -> int:
    return int(torch.Size(shape).numel())


def column_count(network: Network, loss: LossHessian, point: Point, hessian: bool) -> int:
    """Columns that the exact diagonal takes; those of an inner activation only travel part of the way."""
    if not hessian:
        return loss.count
    return loss.count + sum(_numel(output_shape(n)) // point.batch_size for n, _ in network.activations)


class Squares:
    """Accumulates the squares of all parameters over columns that start at the outputs or inside the network.

    Half of the memory budget is for the gradients of the nodes' outputs; patches, their products and copies of them are
    about three pieces of an eighth each. Blocks (see blocks.py) are crossed in one stroke where all columns of a source
    lead through them.
    """

    def __init__(self, point: Point, network: Network, memory_budget: int = 2**28, norms: bool = False):
        self.point, self.network, self._share = point, network, memory_budget // 2
        self._sender = Sender()
        assert point.outputs is not None and point.outputs.grad_fn is not None
        with explained():
            self._blocks = find_blocks(point.outputs.grad_fn, point.batch_size, memory_budget // 4)
        self._cuts: dict[Node, list[tuple[Block, set[Node]]]] = {}
        piece = min(PIECE, memory_budget // 8 // point.loss.element_size())
        self.sums = {
            use.name: Sums(
                torch.zeros_like(point.parameters[use.name].detach(), memory_format=torch.contiguous_format),
                point.parameters[use.name].detach().new_zeros(point.batch_size) if norms else None,
                piece,
            )
            for use in network.uses
        }

    @property
    def columns_at_once(self) -> int:
        """On the CPU no more than stay in the caches: measured, a network of several MB per column gains nothing.
        Blocks do gain; two of theirs are in memory at a time."""
        outputs = self.point.outputs
        assert outputs is not None and outputs.grad_fn is not None
        blocks = [block for block, _ in self._cuts_below(outputs.grad_fn)]
        crossed = {block.convolution for block in blocks}
        sizes = [_numel(output_shape(node)) for node in self.network.nodes() if node not in crossed]
        apart = (sum(sizes) + 2 * max(sizes, default=0)) * outputs.element_size()
        largest = sorted(_numel(output_shape(block.top)) for block in blocks)[-2:]
        fits = self._share // max(1, apart + sum(largest) * outputs.element_size())
        return max(1, min(fits, SMALL // max(1, apart)) if outputs.device.type == "cpu" else fits)

    def _cuts_below(self, source: Node) -> list[tuple[Block, set[Node]]]:
        if source not in self._cuts:
            self._cuts[source] = choose_cuts(source, self._blocks, set(self.network.nodes()))
        return self._cuts[source]

    def add(self, source: Tensor | GradientEdge, seeds: Seeds, below: set[Node] | None = None) -> None:
        """Send the columns back from ``source`` and add the squares at every node that uses a parameter."""
        if not len(seeds.columns):
            return
        nodes, columns = [n for n in self.network.nodes() if below is None or n in below], seeds.columns
        for block, above in self._cuts_below(_node_of(source)):
            top = self._add_nodes(source, columns, seeds.signs, [n for n in nodes if n in above], block.top)
            if top is None:
                return
            nodes = [n for n in nodes if n not in above]
            sent = self._cross(block, top, seeds.signs, nodes)
            if sent is None:
                source, columns = GradientEdge(block.top, 0), top
                break
            source, columns = GradientEdge(*block.below), sent  # type: ignore[arg-type]
            nodes = [n for n in nodes if n is not block.convolution]
        if nodes:
            self._add_nodes(source, columns, seeds.signs, nodes)

    @torch.no_grad()
    def _cross(self, block: Block, top: Tensor, signs: Tensor | None, nodes: list[Node]) -> Tensor | None:
        """Columns below the block, after the squares of its parameters were added. None, with nothing added, if this
        is not possible."""
        sent = block.send(top) if any(node is not block.convolution for node in nodes) else top[:, :, :0]
        uses = [use for use in self.network.uses if use.node is block.convolution]
        if sent is None or (uses and not block.square(top, signs, uses, self.sums)):
            return None
        return sent

    def _add_nodes(
        self, source: Tensor | GradientEdge, columns: Tensor, signs: Tensor | None, nodes: list[Node],
        last: Node | None = None,
    ) -> Tensor | None:  # fmt: skip
        """Add the squares at these nodes, and return what arrives at ``last``."""
        if last is not None and last is _node_of(source):
            return columns
        arrived: Tensor | None = None
        columns = columns.contiguous()  # what comes out of a block is not laid out as torch likes it
        for some in self._passes(nodes, columns) or [[]]:
            ends = some if last is None else [*some, last]
            gradients = self._send_back(source, columns, ends) if ends else []
            arrived = gradients.pop() if last is not None else None
            for node in some:
                self._add_node(node, gradients.pop(0), signs)
        return arrived

    def _passes(self, nodes: list[Node], columns: Tensor) -> list[list[Node]]:
        """Nodes whose output gradients fit their share of the budget together; each list costs a pass of its own."""
        passes: list[list[Node]] = []
        free = 0
        for node in nodes:
            size = len(columns) * columns.element_size() * _numel(output_shape(node))
            if not passes or size > free:
                passes.append([])
                free = self._share
            passes[-1].append(node)
            free -= size
        return passes

    @torch.no_grad()
    def _add_node(self, node: Node, b: Tensor | None, signs: Tensor | None) -> None:
        if b is None:
            return
        for use in self.network.uses:
            if use.node is node:
                sums = self.sums[use.name]
                with explained():  # reading what the graph saved may fail: a checkpointed block hands it out only once
                    WAYS[use.kind, use.role](use, b.to(sums.squares.dtype), signs, self.point.batch_size, sums)

    def _send_back(self, source: Tensor | GradientEdge, columns: Tensor, nodes: list[Node]) -> list[Tensor | None]:
        return self._sender.send(source, columns, nodes)


def _node_of(source: Tensor | GradientEdge) -> Node:
    node = source.grad_fn if isinstance(source, Tensor) else source.node
    assert node is not None
    return node


class Sender:
    """Columns on their way back, several at once where vmap knows every operation, else one after the other."""

    def __init__(self) -> None:
        self._batched = True

    def send(
        self, source: Tensor | GradientEdge, columns: Tensor, nodes: list[Node], together: bool = True
    ) -> list[Tensor | None]:
        """The gradients of the nodes' outputs, [V, *shape] each; None where nothing arrives."""
        if self._batched and together and len(columns) > 1:
            try:
                return self._grad(source, columns, nodes, batched=True)
            except NoCurvature:
                raise
            except (RuntimeError, UserWarning):  # vmap lacks a rule for some operation of this network
                self._batched = False
        each = [self._grad(source, column, nodes, batched=False) for column in columns]
        return [_stack(parts) for parts in zip(*each, strict=True)]

    def _grad(self, source: Any, seed: Tensor, nodes: list[Node], batched: bool) -> list[Tensor | None]:
        edges = [GradientEdge(node, 0) for node in nodes]
        with explained():
            gradients = torch.autograd.grad(
                [source], edges, [seed], retain_graph=True, allow_unused=True, is_grads_batched=batched
            )
        return [None if f is None else f.detach() for f in gradients]


def _stack(parts: Sequence[Tensor | None]) -> Tensor | None:
    present = [p for p in parts if p is not None]
    if not present:
        return None
    return present[0].unsqueeze(0) if len(present) == 1 else torch.stack(present)


def add_loss_columns(squares: Squares, loss: LossHessian, chunk: int) -> None:
    outputs = squares.point.outputs
    assert outputs is not None
    even = math.ceil(loss.count / max(1, math.ceil(loss.count / chunk)))
    for seeds in loss.seeds(max(1, even)):
        squares.add(outputs, Seeds(seeds.columns.to(outputs.dtype), seeds.signs))


def add_activation_columns(squares: Squares, chunk: int) -> None:
    """The part of the Hessian that Gauss-Newton leaves out, one activation node after the other."""
    point, network = squares.point, squares.network
    if not network.activations:
        return
    with explained():
        slopes = torch.autograd.grad(
            point.loss,
            [GradientEdge(node, 0) for node, _ in network.activations],
            retain_graph=True,
            allow_unused=True,
        )
    for (node, kind), slope in zip(network.activations, slopes, strict=True):
        if slope is None:
            continue
        bend = (SECOND_DERIVATIVES[kind](node) * slope.detach()).reshape(point.batch_size, -1)
        below = set(_below(node))
        inner, number = node.next_functions[0]
        assert inner is not None  # an activation without a graph below it is not listed
        source = GradientEdge(inner, number)
        for seeds in _unit_seeds(bend, output_shape(node), chunk):
            squares.add(source, seeds, below)


def _below(node: Node) -> Iterator[Node]:
    seen: set[Node] = set()
    stack = [f for f, _ in node.next_functions if f is not None]
    while stack:
        current = stack.pop()
        if current not in seen:
            seen.add(current)
            yield current
            stack.extend(f for f, _ in current.next_functions if f is not None)


def _unit_seeds(bend: Tensor, shape: tuple[int, ...], chunk: int) -> Iterator[Seeds]:
    """One column per unit, for all samples at once. bend: [B, units]."""
    units = bend.abs().amax(0).nonzero().flatten()
    for numbers in units.split(chunk):
        columns = bend.new_zeros(len(numbers), *bend.shape)
        columns[torch.arange(len(numbers), device=numbers.device), :, numbers] = bend[:, numbers].T.abs().sqrt()
        yield Seeds(columns.reshape(-1, *shape), bend[:, numbers].T.sign())

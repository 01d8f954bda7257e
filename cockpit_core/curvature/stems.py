"""Convolutions of the data itself, and the ReLU and the pooling behind them, kept out of second derivatives.

Torch's second derivative of a convolution always forms the gradient with respect to its input, even where the input
is data and nobody asks for it; those of a ReLU and of a pooling form zeros of the activation's size and add them.
Together that is
a fifth of a Hessian-vector product of a small image network. Such a stem is linear in its weight wherever it has a
derivative: ``z = P (conv(x, W) + b)`` with P the choice that ReLU and pooling made. So the rest of the network is
differentiated with respect to z, and the stem is crossed by hand: ``dz = P (conv(x, dW) + db)`` on the way in,
``dW = conv_weight(x, P^T dz)`` on the way out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from .autograd_graph import kind_of, reachable
from .trunk import Trunk, find_trunks

_aten = torch.ops.aten
_CONVOLUTION = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
_POOLING = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")


class _Relu:
    def __init__(self, result: Tensor):
        self.result = result

    def push(self, change: Tensor) -> Tensor:
        return _aten.threshold_backward(change, self.result, 0.0)

    pull = push


class _MaxPool:
    def __init__(self, node: Any):
        self._input: Tensor = node._saved_self.detach()
        self._indices: Tensor = node._saved_result1
        self._settings = [getattr(node, f"_saved_{name}") for name in _POOLING]

    def push(self, change: Tensor) -> Tensor:
        return change.flatten(-2).gather(-1, self._indices.flatten(-2)).reshape(self._indices.shape)

    def pull(self, slope: Tensor) -> Tensor:
        return _aten.max_pool2d_with_indices_backward(slope, self._input, *self._settings, self._indices)


class Stem:
    """One convolution whose input needs no gradient, with parameters that are used nowhere else, and what follows."""

    def __init__(self, node: Any, weight: Tensor, bias: Tensor | None):
        self.leaves = [weight] if bias is None else [weight, bias]
        self._weight = weight.detach()
        self._node: Node = node  # whose output is z
        self._input: Tensor = node._saved_input.detach()
        self._settings = [getattr(node, f"_saved_{name}") for name in _CONVOLUTION]
        self._links: list[_Relu | _MaxPool] = []

    @property
    def edge(self) -> GradientEdge:
        return GradientEdge(self._node, 0)

    def grow(self, reader: dict[Node, Node]) -> None:
        """Take in the nodes behind, as long as each is the only reader of the one before it."""
        while (node := reader.get(self._node)) is not None:
            kind = kind_of(node)
            if kind == "Relu":
                self._links.append(_Relu(node._saved_result.detach()))  # type: ignore[attr-defined]
            elif kind == "MaxPool2DWithIndices":
                pool = _MaxPool(node)
                if self._links and isinstance(relu := self._links[-1], _Relu):  # the pooling first: less to mask
                    self._links[-1:] = [pool, _Relu(pool.push(relu.result))]
                else:
                    self._links.append(pool)
            else:
                break
            self._node = node

    def push(self, vectors: Sequence[Tensor]) -> Tensor:
        """``dz`` for a direction of weight and bias."""
        weight, *bias = vectors
        change = _aten.convolution(self._input, weight, bias[0] if bias else None, *self._settings)
        for link in self._links:
            change = link.push(change)
        return change

    def push_all(self, vectors: Sequence[Tensor], batched: bool) -> Tensor:
        return torch.func.vmap(self.push)(vectors) if batched else self.push(vectors)

    def pull_all(self, slope: Tensor, batched: bool) -> list[Tensor]:
        return torch.func.vmap(self.pull)(slope) if batched else self.pull(slope)

    def pull(self, slope: Tensor) -> list[Tensor]:
        """The gradient of weight and bias for that of z."""
        for link in reversed(self._links):
            slope = link.pull(slope)
        sizes = [list(bias.shape) for bias in self.leaves[1:]]
        mask = [False, True, bool(sizes)]
        size = sizes[0] if sizes else None
        gradients = _aten.convolution_backward(slope, self._input, self._weight, size, *self._settings, mask)
        return list(gradients[1 : 1 + len(self.leaves)])


def find_stems(root: Tensor, parameters: Sequence[Tensor]) -> list[Stem]:
    """The stems on the way to ``root``. Weights that are shared, cast or computed stay with autograd."""
    nodes = reachable([root.grad_fn])
    uses = [(below, node) for node in nodes for below, _ in node.next_functions if below is not None]
    count = Counter(below for below, _ in uses)
    reader = {below: node for below, node in uses if count[below] == 1}
    wanted = {id(p) for p in parameters}
    stems = []
    for node in nodes:
        if kind_of(node) == "Convolution" and node.next_functions[0][0] is None:
            below = [function for function, _ in node.next_functions[1:] if function is not None]
            leaves: list[Any] = [getattr(function, "variable", None) for function in below]
            trained = node.next_functions[1][0] is not None and all(id(leaf) in wanted for leaf in leaves)
            if trained and all(function in reader for function in below):
                stem = Stem(node, *leaves, *[None] * (2 - len(leaves)))
                stem.grow(reader)
                stems.append(stem)
    return stems


class Stemmed:
    """What to differentiate with respect to, instead of the parameters; and the way between the two."""

    def __init__(self, root: Tensor, parameters: Sequence[Tensor]):
        self.parameters = list(parameters)
        trunks = find_trunks(root, self.parameters)
        taken = {id(leaf) for trunk in trunks for leaf in trunk.leaves}
        stems = find_stems(root, [p for p in self.parameters if id(p) not in taken])
        self.stems: list[Stem | Trunk] = [*trunks, *stems]
        position = {id(p): i for i, p in enumerate(self.parameters)}
        self._places = [[position[id(leaf)] for leaf in stem.leaves] for stem in self.stems]
        crossed = {i for places in self._places for i in places}
        self._rest = [i for i in range(len(self.parameters)) if i not in crossed]
        self.inputs: list[Any] = [*(stem.edge for stem in self.stems), *(self.parameters[i] for i in self._rest)]

    def learn(self, gradients: Sequence[Tensor | None]) -> None:
        """The gradients of ``inputs``: products are to be those of the Hessian, not of Gauss-Newton."""
        for stem, gradient in zip(self.stems, gradients, strict=False):
            if isinstance(stem, Trunk) and gradient is not None:
                stem.learn(gradient)

    def push(self, vectors: Sequence[Tensor], batched: bool = False) -> list[Tensor]:
        """A direction of the parameters (or several, in a leading dimension) as one of ``inputs``."""
        seeds = []
        for stem, places in zip(self.stems, self._places, strict=True):
            seeds.append(stem.push_all([vectors[i] for i in places], batched))
        return [*seeds, *(vectors[i] for i in self._rest)]

    def pull(self, slopes: Sequence[Tensor | None], batched: bool = False) -> list[Tensor]:
        """Gradients of ``inputs`` (None where there is none) as those of the parameters."""
        gradients: list[Tensor | None] = [None] * len(self.parameters)
        at_stems, at_rest = slopes[: len(self.stems)], slopes[len(self.stems) :]
        for stem, places, slope in zip(self.stems, self._places, at_stems, strict=True):
            if slope is not None:
                for i, gradient in zip(places, stem.pull_all(slope, batched), strict=True):
                    gradients[i] = gradient
        for i, slope in zip(self._rest, at_rest, strict=True):
            gradients[i] = slope
        lead = next((s.shape[:1] for s in slopes if s is not None), ()) if batched else ()
        return [
            p.new_zeros(lead + p.shape) if f is None else f for f, p in zip(gradients, self.parameters, strict=True)
        ]

    def close(self) -> None:
        """Let go of the data and of the graph."""
        self.stems, self.inputs = [], []

"""Cotangents pulled back through the user's graph by hand, node by node, to see which rows belong to which sample.

Two cotangents travel side by side: ``c``, and ``c`` with each sample's part multiplied by a weight of its own. As long as
samples do not meet, their ratio at any row is the weight of the sample that the row belongs to, whatever gathers, routing
and reshapes lie in between. Nodes are called directly: no hooks fire, and nothing is accumulated or freed. Functions of
the user's own run on copies, or not at all (``own_functions``). Functions that mix nothing but features of one row are
replaced by something cheaper.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction

from cockpit_core.engine.samples.behind import find_region, is_instance_norm
from cockpit_core.engine.samples.checkpoints import pull_through_checkpoint
from cockpit_core.engine.samples.own_functions import Doubt, is_checkpoint, own_function, pull_pairs

Pair = tuple[Tensor, Tensor]
Places = dict[Any, dict[int, Pair]]
"""By node and output of the node."""
Visit = Callable[[Any, dict[int, Pair]], None]


@dataclass(eq=False)
class Reading:
    """How the graph may be read in one look, and what could not be read."""

    careful: bool = False
    """Saved tensors may not be asked for at all: checkpointing would run the user's code to give them, weights that are
    sharded are not there."""
    closed: str = "it is not run again"
    """Why functions of the user's own may not run; "" where they may."""
    samples: int = 1
    doubts: dict[Any, str] = field(default_factory=dict)
    """By node of such a function: why it is not known what it does to rows."""
    unsettled: bool = False
    """Something hangs on numbers that the next step may change: a factor is zero and hides what lies below it, or a matrix of
    numbers moves rows."""


SAME_PLACES = (
    *("ReluBackward", "GeluBackward", "SiluBackward", "TanhBackward", "SigmoidBackward", "LeakyReluBackward"),
    *("EluBackward", "SoftplusBackward", "HardswishBackward", "HardtanhBackward", "NativeDropoutBackward"),
    *("NativeBatchNormBackward", "CudnnBatchNormBackward", "MiopenBatchNormBackward", "MishBackward"),
    *("CloneBackward", "AliasBackward", "ThresholdBackward", "HardsigmoidBackward", "LogSigmoidBackward"),
)
"""Element by element, or (BatchNorm) marked elsewhere for what it mixes: the first input gets what the output has."""

PRODUCTS = {"AddmmBackward0": (1, 2), "MmBackward0": (0, 1)}
"""Products of rows with a matrix: which input has the rows, and which is the matrix."""


def name_of(node: Any) -> str:
    """What kind of function it is. The derivative of a derivative has other inputs than its name suggests."""
    name: str = node.name()
    if isinstance(node, BackwardCFunction):
        return f"function {name}"
    return name if "BackwardBackward" not in name else f"Derivative of {name}"


def shape_of(node: Any, index: int) -> torch.Size:
    return torch.Size(node._input_metadata[index].shape)


@torch.no_grad()
def pull(seeds: Places, wanted: set[Any], visit: Visit, reading: Reading, stop: set[Any] | None = None) -> None:
    """``visit`` gets the pairs that arrive at the outputs of each wanted node, and keeps none: they are as large as the
    activations. Nothing goes beyond the nodes in ``stop``."""
    region = find_region(seeds, wanted)
    missing = dict.fromkeys(region, 0)
    for node in region:
        for child, _ in node.next_functions:
            if child in missing:
                missing[child] += 1
    arrived: Places = {node: dict(pairs) for node, pairs in seeds.items()}
    ready = [node for node, count in missing.items() if count == 0]
    while ready:
        node = ready.pop()
        pairs = arrived.pop(node, {})
        if node in wanted and pairs:
            visit(node, pairs)
        goes_on = pairs and node.next_functions and not (stop and node in stop)
        results = step_back(node, pairs, region, reading) if goes_on else {}
        for k, (child, index) in enumerate(node.next_functions):
            if child not in missing:
                continue
            if k in results:
                add_pair(arrived.setdefault(child, {}), index, results[k])
            missing[child] -= 1
            if missing[child] == 0:
                ready.append(child)
        del pairs, results


def add_pair(places: dict[int, Pair], index: int, pair: Pair) -> None:
    before = places.get(index)
    places[index] = pair if before is None else (before[0] + pair[0], before[1] + pair[1])


def step_back(node: Any, pairs: dict[int, Pair], region: set[Any], reading: Reading) -> dict[int, Pair]:
    """From the outputs of one function to its inputs."""
    name, edges = name_of(node), node.next_functions
    if isinstance(node, BackwardCFunction):
        return step_through_function(node, pairs, region, reading)
    frozen = edges[0][0] is None  # nothing before it is trained: what it was given has no graph
    same = name.startswith(SAME_PLACES) and not is_instance_norm(node)
    if same and 0 in pairs and not frozen and shape_of(*edges[0]) == pairs[0][0].shape:
        return {0: pairs[0]}
    if name in PRODUCTS and edges[PRODUCTS[name][1]][0] not in region:
        rows = PRODUCTS[name][0]
        return {rows: spread(pairs[0], 1, shape_of(*edges[rows]))} if edges[rows][0] in region else {}
    if name == "ConvolutionBackward0" and edges[0][0] in region and edges[1][0] not in region:
        return {0: spread(pairs[0], 1, shape_of(*edges[0]))}
    alone = edges[0][0] in region and not any(child in region for child, _ in edges[1:])
    if is_packed(node, reading.careful) or (alone and name.startswith("NativeLayerNormBackward")):
        return step_without_saved(node, pairs, region)
    try:
        each = [call_node(node, {index: pair[k] for index, pair in pairs.items()}) for k in (0, 1)]
    except Exception:  # it cannot be called twice, or not from here: what lies below is not reached this way
        return {}
    results = {}
    for k, ((child, index), one, other) in enumerate(zip(edges, *each, strict=True)):
        if child in region and one is not None and other is not None:
            results[k] = (fit(one, child, index), fit(other, child, index))
    if not reading.unsettled and name.startswith(BY_NUMBERS):
        reading.unsettled = is_by_numbers(node, region) or not all(bool(pair[0].any()) for pair in results.values())
    return results


BY_NUMBERS = (
    "MulBackward",
    "DivBackward",
    "MmBackward",
    "AddmmBackward",
    "BmmBackward",
    "LerpBackward",
    "AddcmulBackward",
)
"""Functions that may do nothing at one step and something at the next, as the numbers are that they multiply with."""


def is_by_numbers(node: Any, region: set[Any]) -> bool:
    """Is it a matrix of numbers times rows: a permutation, neighbours in a graph, shares of samples?"""
    name = name_of(node)
    if name not in PRODUCTS and not (name.startswith("BmmBackward") and shape_of(node, 0)[0] == 1):
        return False
    left, right = PRODUCTS.get(name, (0, 1))
    return node.next_functions[left][0] not in region and node.next_functions[right][0] in region


TELLS_HOOKS = hasattr(torch._C._autograd.SavedTensor, "unpack_hook")
"""Does this torch say whether a saved tensor comes from a hook?"""
SAVED: dict[type, list[str]] = {}
"""Attributes of each kind of node that hold saved tensors."""


def is_packed(node: Any, careful: bool) -> bool:
    """Would asking for its saved tensors run somebody's code? Checkpointing computes them again, offloading loads them."""
    if type(node) not in SAVED:
        SAVED[type(node)] = [name for name in dir(type(node)) if name.startswith("_raw_saved_")]
    if careful:
        return bool(SAVED[type(node)])
    for name in SAVED[type(node)]:
        held = getattr(node, name)
        for one in held if isinstance(held, (tuple, list)) else [held]:
            if getattr(one, "unpack_hook", None) is not None:
                return True
    return False


EACH_ELEMENT = (
    *("MulBackward", "DivBackward", "PowBackward", "ExpBackward", "LogBackward", "SqrtBackward", "RsqrtBackward"),
    *("SinBackward", "CosBackward", "AbsBackward", "WhereBackward", "ClampBackward", "MaximumBackward", "ErfBackward"),
)


def step_without_saved(node: Any, pairs: dict[int, Pair], region: set[Any]) -> dict[int, Pair]:
    """What its kind alone tells: rows that it mixes, and rows that it leaves apart."""
    name, pair = name_of(node), pairs.get(0)
    inputs = {k: edge for k, edge in enumerate(node.next_functions) if edge[0] in region}
    if pair is None:
        return {}
    if name.startswith(EACH_ELEMENT):
        return {k: (fit(pair[0], *edge), fit(pair[1], *edge)) for k, edge in inputs.items()}
    rows = pair[0].dim()
    if name.startswith("NativeLayerNormBackward"):
        rows -= len(node._saved_normalized_shape)
    elif name.startswith(("BmmBackward", "ScaledDotProduct")):
        rows -= 2
    elif name.startswith(("SoftmaxBackward", "LogSoftmaxBackward")) and node._saved_dim % (2**64) in (
        rows - 1,
        2**64 - 1,
    ):
        rows -= 1
    else:
        return {}
    shapes = {k: shape_of(*edge) for k, edge in inputs.items()}
    return {k: spread(pair, rows, shape) for k, shape in shapes.items() if shape[:rows] == pair[0].shape[:rows]}


def call_node(node: Any, gradients: dict[int, Tensor]) -> list[Tensor | None]:
    count = len(node._input_metadata)
    out = node(*[gradients.get(index) for index in range(count)])
    return list(out) if isinstance(out, tuple) else [out]


def fit(gradient: Tensor, child: Any, index: int) -> Tensor:
    """What autograd does between two nodes: sum over dimensions that were broadcast, and the dtype of the receiver."""
    meta = child._input_metadata[index]
    if gradient.layout != torch.strided:
        gradient = gradient.to_dense()
    if gradient.shape != torch.Size(meta.shape):
        gradient = gradient.sum_to_size(tuple(meta.shape))
    return gradient if gradient.dtype == meta.dtype else gradient.to(meta.dtype)


def spread(pair: Pair, rows: int, shape: torch.Size) -> Pair:
    """Each row of an input with this shape gets the length of the same row [shape[:rows]] of the output, with its sign: what
    lies around zero must not meet as equals. Not evenly: a normalisation takes away what is even."""
    pattern = uneven(shape[rows:].numel(), pair[0]).reshape(shape[rows:])
    below = pair[0].flatten(rows).sum(rows) < 0

    def one(tensor: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(tensor.flatten(rows), dim=rows)
        signed = torch.where(below, -length, length)
        return signed.reshape(*length.shape, *(1,) * (len(shape) - rows)) * pattern

    return one(pair[0]), one(pair[1])


def uneven(count: int, like: Tensor) -> Tensor:
    """Positive numbers without a pattern, always the same; drawn from no generator."""
    places = torch.arange(count, device=like.device, dtype=torch.float64)
    return (1 + 0.5 * torch.sin(places * 12.9898 + 1)).to(like.dtype)


def step_through_function(node: Any, pairs: dict[int, Pair], region: set[Any], reading: Reading) -> dict[int, Pair]:
    """A ``torch.autograd.Function``: the user's own, and what stands in a checkpoint, are run on copies; torch's others leave
    rows where they are."""
    if own_function(node) is None and not is_checkpoint(node):
        return pass_by(node, pairs)
    try:
        if reading.closed:
            raise Doubt(reading.closed)
        if is_packed(node, reading.careful):
            raise Doubt("what it saved is stored elsewhere")
        pulled = pull_inside(node, pairs, reading) if is_checkpoint(node) else pull_pairs(node, pairs)
    except Doubt as doubt:
        reading.doubts[node] = str(doubt)
        return pass_by(node, pairs)
    edges = {k: node.next_functions[k] for k in pulled}
    return {k: (fit(a, *edges[k]), fit(b, *edges[k])) for k, (a, b) in pulled.items() if edges[k][0] in region}


def pull_inside(node: Any, pairs: dict[int, Pair], reading: Reading) -> dict[int, Pair]:
    def through(seeds: Places, wanted: set[Any], visit: Visit) -> None:
        inner = replace(reading, doubts={})
        pull(seeds, wanted, visit, inner)
        if inner.doubts:
            raise Doubt(next(iter(inner.doubts.values())))

    return pull_through_checkpoint(node, pairs, reading.samples, through)


def pass_by(node: Any, pairs: dict[int, Pair]) -> dict[int, Pair]:
    """A function that is taken to leave every row where it is."""
    results = {}
    for k, (child, index) in enumerate(node.next_functions):
        if child is None or hasattr(child, "variable"):
            continue
        shape = shape_of(child, index)
        same = [pair for position, pair in pairs.items() if pair[0].shape == shape and position == k]
        same = same or [pair for pair in pairs.values() if pair[0].shape == shape]
        rows = [pair for pair in pairs.values() if pair[0].dim() and shape and pair[0].shape[0] == shape[0]]
        if same:
            results[k] = same[0]
        elif rows:
            results[k] = spread(rows[0], 1, shape)
    return results

"""What lies between what is differentiated and the last layers, read from the graph: every term of a sum of losses is seen,
also one whose loss is not the module that ``track`` was given."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from torch import Tensor

from cockpit_core.curvature.autograd_graph import WRAPPER, kind_of, output_shape
from cockpit_core.signals.graph_losses import factor_of, own_elements

MOST = 64  # nodes
_LAYERS = frozenset(
    ("Addmm", "Mm", "Bmm", "Convolution", "Embedding", "NativeLayerNorm", "NativeBatchNorm", "AccumulateGrad")
)
_PAIRS = frozenset(("MseLoss", "SmoothL1Loss", "HuberLoss", "BinaryCrossEntropy", "BinaryCrossEntropyWithLogits"))
_RESHAPED = frozenset(
    """View ReshapeAlias UnsafeView Squeeze Unsqueeze Transpose Permute T Clone ToCopy Slice Select Index IndexSelect
    MaskedSelect""".split()
)
_SQUASHES = frozenset(("Softmax", "Sigmoid"))


def measure_around(root: Any) -> dict[str, float]:
    """``broadcast``: by how much a term grew two shapes that differ (1: none did). ``batch_softmax``: 1 where scores for
    classes went through a softmax along the batch. ``squashed``: 1 where what a loss takes a softmax or sigmoid of is one
    already. Only where it is so: ``rectified``, the same of a ReLU; ``sigmoid_scores`` and ``tanh_scores``, a softmax of one;
    ``softmax_of_one``, a softmax along a single element; ``scrambled``, scores that were given another shape where their
    dimensions were to be exchanged; ``plain_log``, the logarithm of a softmax or sigmoid that may have
    become zero; ``root_factor``, a number that the whole is multiplied by."""
    growth, differences = 1.0, 1.0
    marks = {"batch_softmax": 0.0, "squashed": 0.0}
    waiting, seen = [root], set[Any]()
    while waiting and len(seen) < MOST:
        node = waiting.pop(0)
        if node is None or node in seen:
            continue
        seen.add(node)
        kind = kind_of(node)
        if kind in _PAIRS:
            growth = max(growth, grown(node))
        elif kind in ("Sub", "Mul"):
            grown_by = grown_difference(node) if kind == "Sub" else grown_product(node)
            differences = max(differences, grown_by) if differences and grown_by else 0.0
        marks |= dict.fromkeys(marks_of(node, kind), 1.0)
        if kind not in _LAYERS:
            waiting += [child for child, _ in node.next_functions]
    factor = read_factor(root)
    return {"broadcast": max(growth, differences), **marks} | ({"root_factor": factor} if factor != 1 else {})


def read_factor(root: Any) -> float:
    """Of numbers that stand before the loss: a scale by hand, a weight."""
    factor, node = 1.0, root
    for _ in range(4):
        kind = "" if node is None else kind_of(node)
        scale = factor_of(node, kind) if kind in ("Mul", "Div") else None
        if scale is None:
            break
        factor *= scale
        node = next((child for child, _ in node.next_functions if child is not None), None)
    return factor


def marks_of(node: Any, kind: str) -> list[str]:
    """What is odd about a node that makes probabilities, or takes their logarithms."""
    if kind == "NllLoss":
        return ["batch_softmax"] if picks_along_batch(node) else []
    marks = ["softmax_of_one"] if kind in ("Softmax", "LogSoftmax") and is_along_one(node) else []
    marks += ["scrambled"] if kind in ("Softmax", "LogSoftmax") and is_scrambled(node) else []
    if kind in ("LogSoftmax", "BinaryCrossEntropyWithLogits"):
        return marks + name_scores(node, _SQUASHES if kind != "LogSoftmax" else ("Softmax",))
    if kind not in ("Log", "BinaryCrossEntropy"):
        return marks
    inner = source_of(node)
    if inner is None or kind_of(inner) not in _SQUASHES:
        return marks
    plain = kind == "Log" and inner is node.next_functions[0][0]
    return ["plain_log"] * plain + name_scores(inner, _SQUASHES)


def picks_along_batch(node: Any) -> bool:
    """The labels pick from logarithms of a softmax along the batch. Where as many are compared as there are classes, each may
    be the answer to one of the others: pairs, looked at from both sides."""
    scores = source_of(node)
    if scores is not None and kind_of(scores) == "Log":
        scores = source_of(scores)
    if scores is None or kind_of(scores) not in ("Softmax", "LogSoftmax"):
        return False
    shape = output_shape(scores)
    return is_along_batch(scores) and len(shape) == 2 and shape[0] != shape[1]


def name_scores(node: Any, squashes: Collection[str]) -> list[str]:
    """The node takes a softmax or sigmoid of scores: what has been done to them before."""
    scores = source_of(node)
    kind = kind_of(scores) if scores is not None else ""
    if kind in ("Softmax", "LogSoftmax") and is_along_batch(scores):
        return ["batch_softmax"]
    if kind in ("Sigmoid", "Tanh") and kind not in squashes:
        return ["sigmoid_scores" if kind == "Sigmoid" else "tanh_scores"]
    return ["squashed"] if kind in squashes else ["rectified"] if kind == "Relu" else []


def grown(node: Any) -> float:
    z, y = node._saved_self, node._saved_target
    return z.numel() / max(1, own_elements(z), own_elements(y))


def grown_difference(source: Any) -> float:
    """``z - y`` with [B, 1] and [B], whatever is made of it: a square of differences from a row of outputs. 0 where outputs are
    compared with one another: a loss of all pairs, in which such a square is meant."""
    made = [child for child, _ in source.next_functions if child is not None]
    shape = output_shape(source)
    if is_crossed(shape, made):
        return float(shape[0])
    if len(shape) != 2 or shape[0] != shape[1] or shape[0] < 2:
        return 1.0
    if len(made) == 2:
        return 0.0
    if len(made) != 1 or math.prod(output_shape(made[0])) != shape[0]:
        return 1.0
    return float(shape[0])


def is_crossed(shape: tuple[int, ...], made: list[Any]) -> bool:
    """[B, D] against [B, 1, D]: each row has met the targets of all others."""
    square = len(shape) == 3 and shape[0] == shape[1] > 1
    return square and len(made) == 1 and output_shape(made[0]) == (shape[0], shape[2])


def grown_product(source: Any) -> float:
    """The same for ``y * log(p)``: a square from a row of outputs and one of targets."""
    shape, first = output_shape(source), source.next_functions[0][0]
    if is_crossed(shape, [child for child, _ in source.next_functions if child is not None]):
        return float(shape[0])
    if len(shape) != 2 or shape[0] != shape[1] or shape[0] < 2 or len(source.next_functions) != 2:
        return 1.0
    made = [child for child, _ in source.next_functions if child is not None]
    if len(made) != 1 or math.prod(output_shape(made[0])) != shape[0]:
        return 1.0
    constant = source._saved_self if first is None else source._saved_other
    return float(shape[0]) if isinstance(constant, Tensor) and constant.numel() == shape[0] else 1.0


def source_of(node: Any) -> Any:
    """What it was given, behind nodes that only pick from it or give it another shape."""
    for _ in range(8):
        node = node.next_functions[0][0] if node.next_functions else None
        if node is None or (kind_of(node) not in _RESHAPED and node.name() != WRAPPER):
            break
    return node


def is_along_batch(softmax: Any) -> bool:
    """Does it run along the first of several dimensions?"""
    shape = output_shape(softmax)
    return len(shape) > 1 and shape[0] > 1 and softmax._saved_dim % 2**64 in (0, 2**64 - len(shape))


def is_scrambled(softmax: Any) -> bool:
    """[B, T, C] seen as [B, C, T], or [B, C, H, W] as rows of C: what stands in one row then belongs to different places. The
    same shapes come from transposing first, which is right."""
    view = softmax.next_functions[0][0]
    if view is None or kind_of(view) not in ("View", "UnsafeView", "ReshapeAlias"):
        return False
    given, shape = tuple(view._saved_self_sym_sizes), output_shape(softmax)
    dim = softmax._saved_dim % 2**64
    classes = shape[1] if len(shape) > 1 and dim in (1, 2**64 + 1 - len(shape)) else 0
    if classes < 2 or len(given) < 3:
        return False
    if len(shape) == len(given):
        return given[-1] == classes != given[1]
    rows = given[0] * math.prod(given[2:])
    return len(shape) == 2 and shape[0] == rows > given[0] and given[1] == classes != given[-1]


def is_along_one(softmax: Any) -> bool:
    """Does it run along a single element? Then it is 1, whatever it gets."""
    shape, dim = output_shape(softmax), softmax._saved_dim % 2**64
    return bool(shape) and shape[dim if dim < len(shape) else dim - 2**64] == 1

"""What lies between what is differentiated and the last layers, read from the graph: every term of a sum of losses is seen,
also one whose loss is not the module that ``track`` was given."""

from __future__ import annotations

import math
from typing import Any

from cockpit_core.curvature.autograd_graph import WRAPPER, kind_of, output_shape
from cockpit_core.signals.graph_losses import own_elements

MOST = 64  # nodes
_LAYERS = frozenset(
    ("Addmm", "Mm", "Bmm", "Convolution", "Embedding", "NativeLayerNorm", "NativeBatchNorm", "AccumulateGrad")
)
_PAIRS = frozenset(("MseLoss", "SmoothL1Loss", "HuberLoss", "BinaryCrossEntropy", "BinaryCrossEntropyWithLogits"))
_RESHAPED = frozenset(
    """View ReshapeAlias UnsafeView Squeeze Unsqueeze Transpose Permute T Clone ToCopy Slice Select Index IndexSelect
    MaskedSelect""".split()
)


def measure_around(root: Any) -> dict[str, float]:
    """``broadcast``: by how much a term grew two shapes that differ (1: none did). ``batch_softmax``: 1 where scores for
    classes went through a softmax along the batch. ``squashed``: 1 where what a loss takes a softmax or sigmoid of is one
    already."""
    growth, differences, over_batch, squashed = 1.0, 1.0, 0.0, 0.0
    waiting, seen = [root], set[Any]()
    while waiting and len(seen) < MOST:
        node = waiting.pop(0)
        if node is None or node in seen:
            continue
        seen.add(node)
        kind = kind_of(node)
        if kind in _PAIRS:
            growth = max(growth, grown(node))
            if kind == "BinaryCrossEntropyWithLogits":
                source = source_of(node)
                behind = kind_of(source) if source is not None else ""
                over_batch = max(over_batch, float(behind == "Softmax" and is_along_batch(source)))
                squashed = max(squashed, float(behind == "Sigmoid" or (behind == "Softmax" and not over_batch)))
        elif kind == "Sub":
            grown_by = grown_difference(node)
            differences = max(differences, grown_by) if differences and grown_by else 0.0
        elif kind == "LogSoftmax":
            source = source_of(node)
            if source is not None and kind_of(source) == "Softmax":
                along = is_along_batch(source)
                over_batch, squashed = (1.0, squashed) if along else (over_batch, 1.0)
        if kind not in _LAYERS:
            waiting += [child for child, _ in node.next_functions]
    return {"broadcast": max(growth, differences), "batch_softmax": over_batch, "squashed": squashed}


def grown(node: Any) -> float:
    z, y = node._saved_self, node._saved_target
    return z.numel() / max(1, own_elements(z), own_elements(y))


def grown_difference(source: Any) -> float:
    """``z - y`` with [B, 1] and [B], whatever is made of it: a square of differences from a row of outputs. 0 where outputs are
    compared with one another: a loss of all pairs, in which such a square is meant."""
    made = [child for child, _ in source.next_functions if child is not None]
    shape = output_shape(source)
    if len(shape) != 2 or shape[0] != shape[1] or shape[0] < 2:
        return 1.0
    if len(made) == 2:
        return 0.0
    if len(made) != 1 or math.prod(output_shape(made[0])) != shape[0]:
        return 1.0
    return float(shape[0])


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

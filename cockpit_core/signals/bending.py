"""Does a network bend? From the graph of what it gave: one in which everything is linear is a single layer."""

from __future__ import annotations

from typing import Any

from cockpit_core.curvature.autograd_graph import WRAPPER, kind_of, variable_of

MOST = 2000  # nodes
_PLAIN = frozenset(
    """View UnsafeView Reshape ReshapeAlias Permute Transpose T Squeeze Unsqueeze Expand Mean Sum Cat Stack AvgPool2D
    AvgPool3D AdaptiveAvgPool2D AdaptiveAvgPool3D Slice Select Split SplitWithSizes Narrow Add Sub Neg Clone ToCopy Alias
    Flip Roll NativeDropout
    NativeBatchNorm CudnnBatchNorm MiopenBatchNorm
    Unbind Unflatten AsStrided ConstantPadNd Gather IndexSelect Index Embedding EmbeddingBag""".split()
)
_LAYERS = frozenset(("Addmm", "Mm", "Convolution", "Bmm"))


def count_linear(root: Any) -> int:
    """How many layers there are between the inputs and ``root``, if none of them bends; 0 if something does, or is not known
    to be linear: products of two things that depend on parameters, divisions, normalisations of single samples. BatchNorm is a
    factor and a shift that all samples have in common. A look-up in a table is linear in which row it is."""
    waiting, seen, layers = [root], set(), 0
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        kind = kind_of(node)
        if len(seen) > MOST:
            return 0
        if kind in _LAYERS:
            own = [child for child, _ in node.next_functions if child is not None]
            matrices = [child for child in own if is_parameter(child)]
            if len(own) - len(matrices) > 1 or not matrices:
                return 0
            layers += 1
        elif kind in ("Mul", "Div"):
            if sum(child is not None for child, _ in node.next_functions) > 1:
                return 0
            if kind == "Div" and node.next_functions[0][0] is None:
                return 0
        elif kind not in _PLAIN and kind != "AccumulateGrad" and node.name() != WRAPPER:
            return 0
        waiting += [child for child, _ in node.next_functions]
    return layers


def is_parameter(node: Any) -> bool:
    """A parameter, perhaps transposed or in another shape."""
    for _ in range(3):
        if variable_of(node) is not None:
            return True
        if kind_of(node) not in ("T", "Transpose", "View", "Expand", "Unsqueeze") or node.next_functions[0][0] is None:
            return False
        node = node.next_functions[0][0]
    return variable_of(node) is not None

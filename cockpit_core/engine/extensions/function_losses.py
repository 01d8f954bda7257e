"""The loss module behind a loss that was a function: BackPACK's second order begins at a module.

``F.cross_entropy(model(x), y).backward()`` has the same graph as ``nn.CrossEntropyLoss()(model(x), y).backward()``. The
nodes keep targets, weights and reduction until the backward pass frees them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

Place = tuple[Any, int]
REDUCTIONS = ("none", "mean", "sum")
LONGEST = 8  # factors on a loss: a GradScaler's, that of accumulation


@dataclass(frozen=True)
class FunctionLoss:
    """``factor * module(output, target)`` was differentiated; ``output`` is the place of the first argument."""

    module: nn.Module
    target: Tensor
    output: Place
    factor: float


def read_function_loss(root: Any) -> FunctionLoss | None:
    """None where the graph is that of another loss, or has something between it and the root."""
    factor = 1.0
    for _ in range(LONGEST):
        scale = read_factor(root)
        if scale is None:
            break
        factor, root = factor * scale, root.next_functions[0][0]
    reader = READERS.get(root.name()) if root is not None else None
    loss = None if reader is None else reader(root)
    return None if loss is None else FunctionLoss(*loss, factor)


def read_factor(node: Any) -> float | None:
    """The factor in ``loss * 0.5`` and ``loss / 2``."""
    if (
        node is None
        or node.name() not in ("MulBackward0", "DivBackward0")
        or node.next_functions[1:] not in ((), ((None, 0),))
    ):
        return None
    other = node._saved_other
    if other is None or (isinstance(other, Tensor) and other.numel() != 1):
        return None
    return float(other) if node.name() == "MulBackward0" else 1 / float(other)


def read_cross_entropy(node: Any) -> tuple[nn.Module, Tensor, Place] | None:
    above = node.next_functions[0][0]
    if above is None or above.name() != "LogSoftmaxBackward0" or above._saved_dim != 1:
        return None
    ignored = node._saved_ignore_index
    ignored = ignored - 2**64 if ignored >= 2**63 else ignored
    module = nn.CrossEntropyLoss(node._saved_weight, ignore_index=ignored, reduction=REDUCTIONS[node._saved_reduction])
    return module, node._saved_target, above.next_functions[0]


def read_squares(node: Any) -> tuple[nn.Module, Tensor, Place] | None:
    return nn.MSELoss(reduction=REDUCTIONS[node._saved_reduction]), node._saved_target, node.next_functions[0]


def read_binary(node: Any) -> tuple[nn.Module, Tensor, Place] | None:
    module = nn.BCEWithLogitsLoss(
        node._saved_weight, reduction=REDUCTIONS[node._saved_reduction], pos_weight=node._saved_pos_weight
    )
    return module, node._saved_target, node.next_functions[0]


READERS = {
    "NllLossBackward0": read_cross_entropy,
    "NllLoss2DBackward0": read_cross_entropy,
    "MseLossBackward0": read_squares,
    "BinaryCrossEntropyWithLogitsBackward0": read_binary,
}

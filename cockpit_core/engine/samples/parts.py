"""Calls of the model on parts of one batch (``x.chunk(2)``) that one loss looks at side by side.

Calls on batches of the same size are taken for looks at the same samples. Parts of one tensor are other samples, unless the
loss compares them entry by entry: then they are pairs.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from cockpit_core.engine.samples.behind import GIVEN

PARTS = (
    "one loss looks at several parts of a batch, and entry n of each part counts as one sample: call the model on the whole "
    "batch, or go back through each part by itself"
)
SIDE_BY_SIDE = ("Cat", "Stack")

Cut = tuple[int, int, int]
"""Memory of a batch, samples of a part of it, and where the part begins."""


def cut_of(tensor: Tensor, dim: int) -> Cut | None:
    """None if it is no part of a tensor along this dimension, as ``x[:n]`` is."""
    try:
        whole = tensor._base
        if whole is None or whole.dim() != tensor.dim() or tensor.dim() <= dim or whole.stride() != tensor.stride():
            return None
        memory, start = whole.untyped_storage().data_ptr(), int(tensor.storage_offset())
    except (RuntimeError, NotImplementedError):  # no memory of its own
        return None
    return (memory, tensor.shape[dim], start) if whole.shape[dim] > tensor.shape[dim] else None


def has_parts(cuts: dict[int, Cut]) -> bool:
    """Are two of them different parts of one batch, of the same size?"""
    places = set(cuts.values())
    return len({place[:2] for place in places}) < len(places)


def are_parts(root: Any, cuts: dict[int, Cut]) -> bool:
    """Do such calls meet side by side below this loss, or as terms of a sum? ``cuts``: by call of the model."""
    if not has_parts(cuts):
        return False
    below: dict[Any, frozenset[int]] = {}
    waiting = [root]
    while waiting:
        node = waiting[-1]
        if node in below:
            waiting.pop()
        elif GIVEN in node.metadata:
            below[node] = frozenset(forward for forward, _ in node.metadata[GIVEN] if forward in cuts)
        else:
            children = [child for child, _ in node.next_functions if child is not None]
            new = [child for child in children if child not in below]
            waiting += new
            if not new:
                own = frozenset().union(*(below[child] for child in children))
                if is_side_by_side(node) and any(
                    has_parts({forward: cuts[forward] for forward in own}) and below[child] != own for child in children
                ):
                    return True
                below[node] = own
    return False


def is_side_by_side(node: Any) -> bool:
    scalar = all(len(meta.shape) == 0 for meta in node._input_metadata)
    return scalar or node.name().startswith(SIDE_BY_SIDE)

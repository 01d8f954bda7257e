"""Dropout that no module shows: ``F.dropout(x, p)`` is read from the graph, where it is a product with a random mask."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from cockpit_core.curvature.autograd_graph import kind_of

MOST, ELEMENTS = 2000, 4096  # nodes; elements of a mask that are looked at
LEAST = 64  # elements: fewer may be 0 and c by accident


def find_dropout(root: Any) -> float:
    """The largest probability of dropping among all dropouts behind ``root``; 0 where there is none."""
    waiting, seen, highest = [root], set[Any](), 0.0
    while waiting and len(seen) < MOST:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        kind = kind_of(node)
        if kind == "NativeDropout":
            highest = max(highest, float(node._saved_p))
        elif kind == "Mul" and node.next_functions[-1][0] is None:
            highest = max(highest, read_mask(node._saved_other))
        waiting += [child for child, _ in node.next_functions]
    return highest


def read_mask(mask: Any) -> float:
    """p, if all elements are 0 or 1 / (1 - p) and about p of them are 0; else 0. Any other mask keeps what it lets through as
    it is: it has c = 1."""
    if not isinstance(mask, Tensor) or not mask.is_cpu or not mask.is_floating_point() or mask.numel() < LEAST:
        return 0.0
    part = mask.detach().reshape(-1)[:ELEMENTS] if mask.is_contiguous() else mask.detach().flatten()[:ELEMENTS]
    top = float(part.max())
    if not 1 < top < math.inf:
        return 0.0
    dropped = part == 0
    p, share = 1 - 1 / top, float(dropped.float().mean())
    only_two = bool(torch.logical_or(dropped, part == top).all())
    return p if only_two and abs(share - p) < 5 * math.sqrt(p * (1 - p) / part.numel()) + 0.01 else 0.0

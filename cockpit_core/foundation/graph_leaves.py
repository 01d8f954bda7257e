"""Where a graph ends: nodes that add to the gradient of a leaf."""

from __future__ import annotations

from functools import lru_cache
from typing import Any


def variable_of(node: Any) -> Any:
    """The leaf whose gradient this node adds to; None of any other node. Asking each node whether it has one takes
    torch ten times as long: kinds of nodes are few."""
    return node.variable if has_variable(node.__class__) else None


@lru_cache(maxsize=1024)
def has_variable(kind: type) -> bool:
    return hasattr(kind, "variable")

"""Is the graph of a loss built as it was before? What was read off one then holds for the other."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any


def outline(nodes: Iterable[Any]) -> int:
    """A number that two graphs share if they have the same functions in the same order, with the same settings.

    A function may do something else without another shape or another name: BatchNorm that begins to train, ``flip``,
    ``roll`` or ``softmax`` along another dimension. What it keeps besides tensors tells. Fractions are left out: they only scale.
    """
    parts: list[Any] = []
    for node in nodes:
        parts.append(node.name())
        for name in plain_names(node.__class__):
            value = getattr(node, name)
            if is_whole(value):
                parts.append(value)
        parts.append(None)  # no setting is: where this function ends
    return hash(tuple(parts))


@lru_cache(maxsize=1024)
def plain_names(kind: type) -> tuple[str, ...]:
    """What functions of this kind keep besides tensors. Tensors are not asked for: that would unpack them."""
    names = [name for name in dir(kind) if name.startswith("_saved_")]
    return tuple(name for name in names if not hasattr(kind, f"_raw{name}"))


def is_whole(value: Any) -> bool:
    if isinstance(value, (int, str)):
        return True
    return isinstance(value, tuple) and all(isinstance(entry, int) for entry in value)

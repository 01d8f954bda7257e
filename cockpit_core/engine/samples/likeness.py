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
    return hash(tuple((node.name(), *settings_of(node)) for node in nodes))


def settings_of(node: Any) -> list[Any]:
    values = [getattr(node, name) for name in plain_names(node.__class__)]
    return [value for value in values if is_whole(value)]


@lru_cache(maxsize=1024)
def plain_names(kind: type) -> tuple[str, ...]:
    """What functions of this kind keep besides tensors. Tensors are not asked for: that would unpack them."""
    names = [name for name in dir(kind) if name.startswith("_saved_")]
    return tuple(name for name in names if not hasattr(kind, f"_raw{name}"))


def is_whole(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(isinstance(entry, int) for entry in value)
    return isinstance(value, (int, str))

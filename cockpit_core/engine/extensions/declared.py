"""Which extensions a quantity may name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cockpit_core.quantities import Quantity


def find_extensions(quantities: Iterable[Quantity]) -> dict[str, Any]:
    """By the name under which BackPACK saves them; what several quantities name runs once."""
    named = (need for quantity in quantities for need in quantity.needs if not isinstance(need, str))
    return {extension.savefield: extension for extension in named}


def check_extensions(quantities: Iterable[Quantity]) -> None:
    """An error names the quantity and what to write instead."""
    known: dict[str, tuple[str, Any]] = {}
    for quantity in quantities:
        for need in quantity.needs:
            if isinstance(need, str):
                continue
            _check_one(quantity.name, need)
            other, first = known.setdefault(need.savefield, (quantity.name, need))
            if not _is_alike(first, need):
                raise ValueError(
                    f"{quantity.name}.needs and {other}.needs name {type(need).__name__} with different options; both would "
                    f"be {need.savefield!r}: give them the same extension, or track them in runs of their own"
                )


def _check_one(owner: str, need: Any) -> None:
    from backpack.extensions import GGNMP, HMP, PCHMP
    from backpack.extensions.backprop_extension import BackpropExtension

    if isinstance(need, type) and issubclass(need, BackpropExtension):
        raise ValueError(f"{owner}.needs names the class {need.__name__}; write {need.__name__}()")
    if not isinstance(need, BackpropExtension):
        raise ValueError(f"{owner}.needs takes words and instances of backpack.extensions, got {need!r}")
    if isinstance(need, (HMP, GGNMP, PCHMP)):
        raise ValueError(
            f"{owner}.needs names {type(need).__name__}, which gives functions that need the graph of the pass, and that is "
            "gone when a quantity is measured; ask for a diagonal, factors or a square root instead"
        )


def _is_alike(first: Any, second: Any) -> bool:
    return first is second or (type(first) is type(second) and _options(first) == _options(second))


def _options(extension: Any) -> dict[str, Any]:
    plain = (bool, int, float, str, list, tuple, type(None))
    return {key: value for key, value in vars(extension).items() if isinstance(value, plain)}

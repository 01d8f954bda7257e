"""Looking up what the activations of a step showed, and adding it up by layer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from cockpit_core.quantities.base import NoValue, Statistics

if TYPE_CHECKING:
    from cockpit_core.quantities.measured import Activations


def find_activations(statistics: Statistics) -> Activations:
    if statistics.activations is None:
        raise NoValue(statistics.reason("activations", "no forward pass was seen"))
    return statistics.activations


def refuse_empty(items: Iterable[Any], activations: Activations, what: str) -> None:
    if not list(items):
        raise NoValue(activations.reason or what)


def describe_part(items: Iterable[Any]) -> str:
    """ "" where every element was looked at."""
    parts = [one.part for one in items]
    least = min(parts)
    return "" if least >= 1 else f"on {least:.2g} of the elements, evenly spread"


def share_by_layer(pairs: Iterable[tuple[str, float, float]]) -> tuple[float, dict[str, float]]:
    """(layer, part, whole) added up: the share of the network, and that of each layer with a name."""
    sums: dict[str, tuple[float, float]] = {}
    for layer, part, whole in pairs:
        for key in {layer, ""}:
            known = sums.get(key, (0.0, 0.0))
            sums[key] = known[0] + part, known[1] + whole
    return sums[""][0] / sums[""][1], {name: part / whole for name, (part, whole) in sums.items() if name}

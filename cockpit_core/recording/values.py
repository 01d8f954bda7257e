"""What a quantity gave, as the record stores it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from cockpit_core.foundation.records import Histogram, Record
from cockpit_core.quantities import Value

Heavy = tuple[Histogram, list[Histogram | None]]
"""A value of the network, and one for each layer of the header."""


@dataclass
class Taken:
    """One quantity at one step: numbers for the light record, arrays for heavy ones."""

    scalars: dict[str, float] = field(default_factory=dict)
    layers: dict[str, np.ndarray] = field(default_factory=dict)
    layers_missing: dict[str, np.ndarray] = field(default_factory=dict)
    estimates: dict[str, tuple[float, str]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    heavy: list[Heavy] = field(default_factory=list)


def take_value(
    name: str, value: float | Value | Any, step: int, layers: Sequence[str], into: Record | Taken, heavy: list[Heavy]
) -> None:
    """``layers`` are those of the header, in their order. It writes straight into the record: in a tiny network even
    the cost of passing on a dozen values would show."""
    if not isinstance(value, Value):
        into.scalars[name] = float(value)
        return
    if value.network is not None:
        into.scalars[name] = float(value.network)
    if value.layers:
        into.layers[name], into.layers_missing[name] = line_up(value.layers, layers)
    if value.error is not None or value.method:
        into.estimates[name] = (math.nan if value.error is None else float(value.error), value.method)
    if value.reason:
        into.missing[name] = value.reason
    if value.table is not None:
        heavy.append((Histogram(name, step, value.table, np.zeros(0)), []))
    if value.histograms is not None:
        network, by_layer = value.histograms
        heavy.append((network, [by_layer.get(n) for n in layers]))
    for part, more in value.parts.items():
        take_value(f"{name}/{part}", more, step, layers, into, heavy)


def line_up(numbers: dict[str, float], layers: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """The number of each layer of the header, NaN where there is none, and which have none."""
    if len(numbers) == len(layers) and list(numbers) == layers:
        return np.array([*numbers.values()], np.float64), none_of(len(layers))
    values = [numbers.get(n, math.nan) for n in layers]
    return np.array(values, dtype=np.float64), np.array([n not in numbers for n in layers])


@lru_cache(maxsize=16)
def none_of(count: int) -> np.ndarray:
    """False for each layer; not to be written into, because all records share it."""
    nothing = np.zeros(count, dtype=bool)
    nothing.flags.writeable = False
    return nothing


def why_partly(waiting: Iterable[str]) -> str:
    """``waiting``: layers that will be measured at the module around them from the next step on."""
    names = list(waiting)
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return (
        f"{names[0]}{more} could not be measured as planned; another way is taken from the next step on"
        if names
        else ""
    )


def layers_alone(taken: Taken, reason: str) -> Taken:
    """Without the value of the whole network: some of its layers are not in it."""
    missing = dict.fromkeys([*taken.scalars, *(network.quantity for network, _ in taken.heavy)], reason)
    return replace(taken, scalars={}, estimates={}, heavy=[], missing=taken.missing | missing)


def add_to_record(record: Record, taken: Taken) -> None:
    record.scalars |= taken.scalars
    record.layers |= taken.layers
    record.layers_missing |= taken.layers_missing
    record.estimates |= taken.estimates
    record.missing |= taken.missing

"""Counts of individual gradients, of the layers and of the network as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cockpit_core.quantities.base import NoValue, Statistics

if TYPE_CHECKING:
    from cockpit_core.kernels import Counts


def join_counts(statistics: Statistics) -> tuple[Counts, Mapping[str, Counts]]:
    """Of the network, and by layer; NoValue where no layer has any."""
    layers = statistics.counts
    if not layers:
        raise NoValue(statistics.reason("individual", "no layer has individual gradients"))
    first, *others = layers.values()
    network = first.copy()
    for counts in others:
        network = network.merge(counts)
    return network, layers

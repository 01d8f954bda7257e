"""Counts of individual gradients, of the layers and of the network as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cockpit_core.quantities.base import NoValue, Statistics, Value

if TYPE_CHECKING:
    from cockpit_core.kernels import Counts


def record_histograms(statistics: Statistics, name: str, kind: str) -> Value:
    """The histograms of the network and of its layers; ``kind`` is "histogram1d" or "histogram2d"."""
    network, layers = join_counts(statistics)
    own = {layer: getattr(counts, kind)(statistics.step, layer, name, network) for layer, counts in layers.items()}
    return Value(histograms=(getattr(network, kind)(statistics.step, quantity=name), own))


def join_counts(statistics: Statistics) -> tuple[Counts, Mapping[str, Counts]]:
    """Counts of the network, and by layer; NoValue where no layer has any."""
    layers = statistics.counts
    if not layers:
        raise NoValue(statistics.reason("individual", "no layer has individual gradients"))
    first, *others = layers.values()
    network = first.copy()
    for counts in others:
        network = network.merge(counts)
    return network, layers

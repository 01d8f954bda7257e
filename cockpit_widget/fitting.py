"""As much of a run as fits into a message: all of it, or fewer points per curve, or no layers."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from cockpit_core import records
from cockpit_core.events.batch import encode_batch
from cockpit_core.events.data import RunData
from cockpit_core.schema import wire

FEWEST_POINTS = 100  # per curve, before layers are given up
ROW_BYTES = 36  # seq, step, time, wall time, epoch and what the framing takes
LIST_BYTES = 160  # the alpha fit and the notes of one row


def encode_within(data: RunData, since: int = 0, *, run: str, limit: int, histograms: bool | int = False) -> bytes:
    """A batch of at most ``limit`` bytes.

    Tried in turn: everything; all columns with fewer points (extremes stay); the network's columns with layers left
    out; the same without histograms. A page asks for what it lacks when the user wants to see it.
    """
    network, layered = count_columns(data)
    wanted: list[tuple[Collection[str] | None, int, bool | int]] = [
        (None, network + layered, histograms),
        ([], network, histograms),
        ([], network, False),
    ]
    for layers, columns, heavy in wanted:
        points = _guess_points(max(1, data.expected - since), columns, limit)
        while points is None or points >= FEWEST_POINTS:
            batch = encode_batch(data, since, run=run, layers=layers, max_points=points, histograms=heavy)
            if len(batch) <= limit:
                return batch
            points = int((points or data.expected - since) * min(0.9, 0.8 * limit / len(batch)))
    return encode_batch(data, since, run=run, names=["Loss"], layers=[], max_points=FEWEST_POINTS)


def _guess_points(rows: int, columns: int, limit: int) -> int | None:
    """None if all rows fit. Thinned curves keep rows of their own, so each point may cost a row."""
    if rows * (8 * columns + ROW_BYTES + LIST_BYTES) <= limit:
        return None
    return max(FEWEST_POINTS, limit // ((12 + ROW_BYTES) * columns))


def count_columns(data: RunData) -> tuple[int, int]:
    """How many curves belong to the network, and how many to layers."""
    table = data.table
    return max(1, len(table.columns)), len(table.layer_columns) * len(table.layer_index)


def encode_layers(
    data: RunData, run: str, names: Sequence[str] | None, layers: Sequence[str] | None, limit: int
) -> bytes:
    """The whole history of some layer-wise curves."""
    points: int | None = None
    while True:
        batch = encode_batch(data, 0, run=run, names=names, layers=layers, max_points=points)
        if len(batch) <= limit or (points is not None and points <= 2):
            return batch
        points = max(2, int((points or data.expected) * min(0.9, 0.8 * limit / len(batch))))


def encode_histograms(data: RunData, run: str, histograms: Sequence[records.Histogram]) -> bytes:
    """Nothing but histograms: no rows, and no claim about any."""
    empty = np.empty(0)
    batch = records.Batch(run, data.header.run_id, 0, 0, empty, empty, empty, empty, histograms=list(histograms))
    return wire.encode_batch(batch)

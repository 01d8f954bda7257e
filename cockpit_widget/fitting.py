"""As much of a run as fits into a message: all of it, or fewer points per curve, or fewer layers and histograms."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np

from cockpit_core.events.batch import encode_batch
from cockpit_core.events.data import RunData
from cockpit_core.events.heavy import Room
from cockpit_core.foundation import records
from cockpit_core.report.html import spread
from cockpit_core.schema import batches, wire

# What the parts may take of a message that cannot hold everything.
NETWORK, LAYERS = 0.6, 0.2
HISTORY = 40  # histograms of the network over time, for a page that may never be able to ask
MOST_PIECES = 8  # of a backlog: as many messages at once
FEWEST_POINTS = 20  # points per curve; a curve with fewer says nothing
ROW_BYTES = 36  # seq, step, time, wall time, epoch and what the framing takes
LIST_BYTES = 160  # the alpha fit and the notes of one row
POINT_BYTES = 12  # value and row number


def encode_within(data: RunData, since: int = 0, *, run: str, limit: int, histograms: int = 0) -> list[bytes]:
    """Batches of at most ``limit`` bytes together, frames and all.

    All curves if they fit. Otherwise those of the network with fewer points (extremes stay) and those of layers with
    still fewer. Then ``histograms`` of each kind, the newest first, as many as there is room for. A page asks for what
    it lacks when the user wants to see it.
    """
    limit -= 64  # frames
    parts = encode_curves(data, since, run, limit)
    if histograms:
        chosen = list(choose_histograms(data, histograms, limit - sum(map(len, parts)) - 400))
        parts.append(encode_histograms(data, run, chosen) if chosen else b"")
    return [part for part in parts if part]


def encode_curves(data: RunData, since: int, run: str, limit: int) -> list[bytes]:
    room = int(limit * (NETWORK + LAYERS))
    if estimate_bytes(data, since) <= room:
        batch = encode_batch(data, since, run=run)
        if len(batch) <= room:
            return [batch]
    network = thin(data, since, run, None, [], int(limit * NETWORK))
    first = network or encode_first(data, since, run, int(limit * NETWORK)) or encode_first(data, since, run, room)
    return [first, encode_layers_within(data, since, run, int(limit * LAYERS), room - len(first))]


def encode_layers_within(data: RunData, since: int, run: str, limit: int, most: int) -> bytes:
    """All that is layer-wise; or the gradients alone, in whatever is left: the map of the network is on the first screen,
    and a page asks only after a click."""
    layered = list(data.table.layer_columns)
    for names, room in ((layered, limit), ([name for name in layered if name == "GradNorm"], most)):
        encoded = thin(data, since, run, names, None, room) if names else None
        if encoded is not None:
            return encoded
    return b""


def encode_first(data: RunData, since: int, run: str, limit: int) -> bytes:
    """With many runs in one message there is no room for all curves of each. Then it holds the most important ones,
    as many as fit: a run without any curve looks like one that has not begun."""
    names = [name for name in data.table.columns if not name.startswith(("signal/", "error/"))]
    logged = [name for name in names if name.startswith("log/")]
    for chosen in (names, ["Loss", "Alpha", "GradNorm", *logged], ["Loss", *logged[:4]], ["Loss"]):
        encoded = thin(data, since, run, chosen, [], limit)
        if encoded is not None:
            return encoded
    return b""


def split(data: RunData, since: int, limit: int, most: int = MOST_PIECES) -> list[int]:
    """Where to cut what is new so that each piece but the last, which may hold histograms, is sent as it is.

    Nothing is cut where it would take more than ``most`` pieces: then curves are thinned, and a page asks for detail
    where the user looks closely.
    """
    rows = data.expected - since
    each = int(limit * (NETWORK + LAYERS) * rows / max(1, estimate_bytes(data, since, POINT_BYTES)))
    if each < 1 or rows > most * each:
        return []
    return list(range(since + each, data.expected, each))


def estimate_bytes(data: RunData, since: int, value_bytes: int = 8) -> int:
    """Without histograms. A value takes 8 bytes in a column that has one in every row; where one row has none (the end of
    a run, something that was logged), ``POINT_BYTES``."""
    table = data.table
    columns = len(table.columns) + len(table.layer_columns) * len(table.layer_index)
    return max(1, data.expected - since) * (value_bytes * columns + ROW_BYTES + LIST_BYTES)


def thin(
    data: RunData, since: int, run: str, names: Collection[str] | None, layers: Collection[str] | None, limit: int
) -> bytes | None:
    """The batch with about the most points per curve that fits; None if even the fewest do not.

    Each try encodes everything, so the first is already a guess, and one that fits is taken.
    """
    rows = max(0, len(data.table) - data.table.find_row(since))  # far fewer than expected, for a log with gaps
    points: int | None = guess_points(rows, count_columns(data, names, layers), names is None, int(0.82 * limit))
    while points is None or points >= FEWEST_POINTS:
        points = None if points is None or points >= rows else points
        batch = encode_batch(data, since, run=run, names=names, layers=layers, max_points=points)
        if len(batch) <= limit:
            return batch
        points = int((points or rows) * min(0.8, 0.9 * limit / len(batch)))
    return None


def count_columns(data: RunData, names: Collection[str] | None, layers: Collection[str] | None) -> int:
    table = data.table
    network = [name for name in table.columns if names is None or name in names]
    layered = [name for name in table.layer_columns if names is None or name in names]
    return max(1, len(network) + len(layered) * len(table.layer_index if layers is None else layers))


def guess_points(rows: int, columns: int, lists: bool, limit: int) -> int:
    """How many points per curve make ``limit`` bytes, if the curves keep independent rows."""

    def size(points: float) -> float:
        used = rows * (1 - (1 - points / rows) ** columns)  # rows that some curve refers to
        return POINT_BYTES * points * columns + ROW_BYTES * used + (LIST_BYTES * points if lists else 0)

    low, high = 0.0, float(max(1, rows))
    if rows < 1 or size(high) <= limit:
        return rows
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if size(middle) <= limit else (low, middle)
    return int(low)


def choose_histograms(data: RunData, count: int, limit: int) -> Iterator[records.Histogram]:
    """The newest of each kind, the network's and then the layers'; then older ones of the network, spread over time."""
    names = data.histogram_names
    newest = [(name, -1, layer) for layer in (None, *data.layers) for name in names]
    older = {name: spread(data.histogram_steps(name))[1:count] for name in names}
    history = [(name, older[name][i], None) for i in range(count - 1) for name in names if i < len(older[name])]
    room = Room(limit)
    for name, step, layer in newest + history:
        try:
            blob = data.histogram_bytes(name, step, layer)
            if not room.take(blob):
                return
            room.left -= 8
            histogram = wire.decode_histogram(blob)
        except (KeyError, ValueError, OSError):
            continue  # this layer has none, or the file has changed meanwhile
        yield histogram


def encode_layers(
    data: RunData, run: str, names: Sequence[str] | None, layers: Sequence[str] | None, limit: int
) -> bytes:
    """The whole history of some layer-wise curves."""
    return thin(data, 0, run, names, layers, limit) or b""


def encode_stretch(data: RunData, run: str, since: int, until: int, points: int | None, limit: int) -> bytes:
    """The records from ``since`` to ``until`` with this many points per curve; without layers if that is too much."""
    batch = encode_batch(data, since, run=run, max_points=points, until=until)
    if len(batch) > limit:
        batch = encode_batch(data, since, run=run, layers=[], max_points=points, until=until)
    return batch


def encode_histograms(data: RunData, run: str, histograms: Sequence[records.Histogram]) -> bytes:
    """Nothing but histograms: no rows, and no claim about any."""
    empty = np.empty(0)
    batch = records.Batch(run, data.header.run_id, 0, 0, empty, empty, empty, empty, histograms=list(histograms))
    return batches.encode_batch(batch)

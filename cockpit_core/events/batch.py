"""A run as columns for a page: whole, or what is new since a cursor. All hosts send the same bytes."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache

import numpy as np

from cockpit_core.events.data import RunData
from cockpit_core.events.heavy import Room
from cockpit_core.foundation import records
from cockpit_core.schema import batches, wire
from cockpit_core.schema.columns import encode_columns, pack_whole
from cockpit_core.schema.limits import MAX_INFLATED

RATIO = ("UpdateSize", "ParamNorm")  # the page divides one by the other
MOST_FINDINGS = 200  # there are some fifty names; a log that is not ours may hold any


def encode_batch(
    data: RunData,
    since: int = 0,
    *,
    run: str,
    names: Collection[str] | None = None,
    layers: Collection[str] | None = None,
    max_points: int | None = None,
    histograms: bool | int = False,
    until: int | None = None,
) -> bytes:
    """Everything with ``seq >= since`` (0: the whole run, which replaces what a page has).

    ``until`` ends the part before that record: more detail of a stretch that a page already knows thinned.
    ``names`` and ``layers`` restrict the columns (None = all, ``layers=[]`` = the network only). ``max_points`` thins
    each column to about that many values, always the same ones, with every extreme among them. ``histograms=True``
    adds the last histogram of each kind, a number that many, evenly spread over the run.
    """
    if max_points is not None:
        return batches.encode_batch(
            make_batch(
                data,
                since,
                run=run,
                names=names,
                layers=layers,
                max_points=max_points,
                histograms=histograms,
                until=until,
            )
        )
    # Every value is wanted, as in nearly every message to a notebook: its columns go straight into the bytes.
    since, first, last = _find_rows(data, since, until)
    batch = _make_bare(data, since, first, last, until, run)
    _add_rest(batch, data, names, layers, None, histograms, until)
    return batches.encode_batch(batch) + _pack_columns(data, first, last, batch.seq.size, names, layers)


def make_batch(
    data: RunData,
    since: int = 0,
    *,
    run: str,
    names: Collection[str] | None = None,
    layers: Collection[str] | None = None,
    max_points: int | None = None,
    histograms: bool | int = False,
    until: int | None = None,
) -> records.Batch:
    """The same before it becomes bytes."""
    since, first, last = _find_rows(data, since, until)
    batch = _make_bare(data, since, first, last, until, run)
    batch.columns = list(_select(data, first, last, batch.seq.size, names, layers))
    if max_points is not None:
        batch.columns = _decimate_all(batch.columns, max_points)
        _leave_out_rows(batch)
    _add_rest(batch, data, names, layers, max_points, histograms, until)
    return batch


def _find_rows(data: RunData, since: int, until: int | None) -> tuple[int, int, int | None]:
    """The first record, its row, and the row after the last (None: to the end)."""
    table = data.table
    if since > table.next_seq:  # the run was started anew under the same name
        since = 0
    first = table.find_row(since)
    return since, first, None if until is None else max(first, table.find_row(until))


def _make_bare(data: RunData, since: int, first: int, last: int | None, until: int | None, run: str) -> records.Batch:
    """All rows, and no columns yet."""
    table = data.table
    rows = table.rows(first, last)
    end = table.next_seq if until is None else max(since, min(until, table.next_seq))
    return records.Batch(
        run=run,
        run_id=data.header.run_id,
        from_seq=since,
        to_seq=end,
        seq=rows.seq,
        step=rows.step,
        time=rows.time,
        wall_time=rows.wall_time,
        epoch=None if np.isnan(rows.epoch).all() else rows.epoch,
        triggered=rows.triggered if rows.triggered.any() else None,
        replace=since == 0 and until is None,
        header=data.header if table.header is not None and since <= table.header_seq <= end else None,
        notices=[notice for _, notice in table.notices.between(since, end)],
        findings=latest(finding for _, finding in table.findings.between(since, end)),
        drop_from_step=min((drop.step for drop in table.drops if drop.seq >= since > 0), default=-1),
    )


def _add_rest(
    batch: records.Batch,
    data: RunData,
    names: Collection[str] | None,
    layers: Collection[str] | None,
    max_points: int | None,
    histograms: bool | int,
    until: int | None,
) -> None:
    """What is no column."""
    _add_lists(batch, data, names, max_points)
    if until is None:
        _add_histograms(batch, data, layers, histograms)
    _add_status(batch, data)


def latest(findings: Iterable[records.Finding]) -> list[records.Finding]:
    """The last message of each name: those before no longer count. Of very many names, the last ones."""
    return list({finding.name: finding for finding in findings}.values())[-MOST_FINDINGS:]


def _select(
    data: RunData,
    first: int,
    last: int | None,
    count: int,
    names: Collection[str] | None,
    layers: Collection[str] | None,
) -> Iterator[records.BatchColumn]:
    """All wanted columns of these ``count`` rows, counted from ``first``; those without a value are left out.

    One value per row needs no row numbers.
    """
    table = data.table
    for name, column in table.columns.items():
        if names is None or _wanted(name, names):
            some, values = column.part(first, last, count)
            if values.size:
                yield records.BatchColumn(name, values, rows=None if some is None else some - first)
    layer_names, chosen = list(table.layer_index), None if layers is None else set(layers)
    for name, matrix in table.layer_columns.items():
        if _wanted(name, names):
            wanted = [index for index in matrix.layers() if chosen is None or layer_names[index] in chosen]
            for index, rows, values in matrix.get_all(wanted, first, last):
                where = None if rows.size == count else rows - first
                yield records.BatchColumn(name, values, layer_names[index], where)


def _pack_columns(
    data: RunData,
    first: int,
    last: int | None,
    count: int,
    names: Collection[str] | None,
    layers: Collection[str] | None,
) -> bytes:
    """The bytes of what ``_select`` gives. A column with one value per row, as most are, is copied as it lies there."""
    table = data.table
    if last is not None or names is not None or layers is not None or not count or sys.byteorder != "little":
        return encode_columns(_select(data, first, last, count, names, layers))
    whole: list[tuple[str, str, bytes]] = []
    others: list[records.BatchColumn] = []
    for name, column in table.columns.items():
        rows, start = column.rows, len(column.rows) - count
        if start >= 0 and rows[start] == first:
            whole.append((name, "", column.values[start:].tobytes()))
        elif rows and rows[-1] >= first:
            some, values = column.part(first, None, count)
            others.append(records.BatchColumn(name, values, rows=some if some is None else some - first))
    layer_names = list(table.layer_index)
    for name, matrix in table.layer_columns.items():
        for index, where, values in matrix.get_all(matrix.layers(), first, None):
            if where.size == count:
                whole.append((name, layer_names[index], values.tobytes()))
            else:
                others.append(records.BatchColumn(name, values, layer_names[index], where - first))
    return pack_whole(whole, count) + encode_columns(others)


def _wanted(name: str, names: Collection[str] | None) -> bool:
    return names is None or name in names or name.removeprefix("log/") in names or name.removeprefix("error/") in names


def decimate(values: np.ndarray, max_points: int | None) -> np.ndarray:
    """Indices to keep: per bucket the smallest and the largest value and the first one that is not finite.

    Deterministic; at most ``max_points`` plus two ends, plus one per bucket that holds NaN or infinities.
    """
    count = values.size
    buckets = max(1, (max_points or count) // 2)
    if max_points is None or count <= max(max_points, 2):
        return np.arange(count)
    starts, bucket = _buckets(count, buckets)
    finite = np.isfinite(values)
    low = _first_of(np.where(finite, values, np.inf), bucket, starts)
    high = _first_of(np.where(finite, -values, np.inf), bucket, starts)
    keep = np.zeros(count, dtype=bool)
    for some in ([0, count - 1], low, high, _first_each(np.flatnonzero(~finite), bucket)):
        keep[some] = True
    return np.flatnonzero(keep)


def sample(values: np.ndarray, max_points: int | None) -> np.ndarray:
    """Indices to keep of something whose distribution is shown: evenly spread, and the two extremes of the whole.

    The extremes of every bucket would make a bell of two humps.
    """
    if max_points is None or values.size <= max(max_points, 4):
        return np.arange(values.size)
    even = np.linspace(0, values.size - 1, max(2, max_points - 2)).round().astype(int)
    finite = np.flatnonzero(np.isfinite(values))
    ends = [finite[values[finite].argmin()], finite[values[finite].argmax()]] if finite.size else []
    return np.unique(np.concatenate((even, np.array(ends, dtype=int))))


@lru_cache(4)
def _buckets(count: int, buckets: int) -> tuple[np.ndarray, np.ndarray]:
    """Where each bucket starts, and the bucket of every index; the columns of a run mostly share one length."""
    starts = np.arange(buckets) * count // buckets
    return starts, np.repeat(np.arange(buckets), np.diff(starts, append=count))


def _first_of(keys: np.ndarray, bucket: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """The first index in each bucket with the smallest key."""
    return _first_each(np.flatnonzero(keys == np.minimum.reduceat(keys, starts)[bucket]), bucket)


def _first_each(indices: np.ndarray, bucket: np.ndarray) -> np.ndarray:
    """The first of these indices (in order) in each bucket that has one."""
    return indices[np.diff(bucket[indices], prepend=-1) != 0]


def _decimate_all(columns: list[records.BatchColumn], max_points: int) -> list[records.BatchColumn]:
    """Each by its own extremes; the two of a ratio at the steps of both, or it would have a value at hardly any."""
    partners: dict[tuple[str, int], np.ndarray] = {}
    for column in columns:
        if column.name in RATIO:
            kept, key = decimate(column.values, max_points), (column.layer, column.values.size)
            partners[key] = np.union1d(partners[key], kept) if key in partners else kept
    of_ratio = [partners.get((own.layer, own.values.size)) if own.name in RATIO else None for own in columns]
    return [
        _keep(column, decimate(column.values, max_points) if both is None else both)
        for column, both in zip(columns, of_ratio, strict=True)
    ]


def _keep(column: records.BatchColumn, keep: np.ndarray) -> records.BatchColumn:
    if keep.size == column.values.size:
        return column
    rows = keep if column.rows is None else column.rows[keep]
    return records.BatchColumn(column.name, column.values[keep], column.layer, rows, True)


def _leave_out_rows(batch: records.Batch) -> None:
    """After decimation those rows stay that are referred to, were triggered, or are the last."""
    columns, count = batch.columns, batch.seq.size
    if not any(column.decimated for column in columns) or any(column.rows is None for column in columns):
        return
    used = np.zeros(count, bool) if batch.triggered is None else batch.triggered.astype(bool)
    used[-1] = True
    for column in columns:
        used[column.rows] = True
    kept = np.flatnonzero(used)
    if kept.size == count:
        return
    for name in ("seq", "step", "time", "wall_time", "epoch", "triggered"):
        rows = getattr(batch, name)
        setattr(batch, name, None if rows is None else rows[kept])
    batch.columns = [_renumber(column, kept) for column in columns]


def _renumber(column: records.BatchColumn, kept: np.ndarray) -> records.BatchColumn:
    """A column with a value in every row keeps all of them, so here all have row numbers."""
    assert column.rows is not None
    whole = column.rows.size == kept.size
    column.rows = None if whole else np.searchsorted(kept, column.rows)
    return column


def _add_lists(batch: records.Batch, data: RunData, names: Collection[str] | None, max_points: int | None) -> None:
    since, end = batch.from_seq, batch.to_seq
    if names is None or "Alpha" in names:
        fits = [fit for _, fit in data.table.alphas.between(since, end)]
        values = np.array([np.nan if fit.alpha is None else fit.alpha for fit in fits])
        batch.alphas = [fits[i] for i in sample(values, max_points)]
    row_of = {seq: row for row, seq in enumerate(batch.seq.tolist())}
    for seq, missing in data.table.missing.between(since, end):
        if seq in row_of and _wanted(missing.name, names):
            batch.missing.setdefault(row_of[seq], {})[missing.name] = missing.reason
    for seq, samples in data.table.top_samples.between(since, end):
        if seq in row_of:
            batch.top_samples[row_of[seq]] = samples


def _add_histograms(
    batch: records.Batch, data: RunData, layers: Collection[str] | None, histograms: bool | int
) -> None:
    batch.heavy = {name: data.histogram_steps(name) for name in data.histogram_names}
    count, room = int(histograms), Room(MAX_INFLATED)
    for name, steps in batch.heavy.items() if count else ():
        chosen = np.unique(np.linspace(len(steps) - 1, 0, count).round().astype(int)) if steps else np.empty(0, int)
        for step in (steps[i] for i in chosen):
            for layer in (None, *(x for x in data.layers if layers is None or x in layers)):
                try:
                    blob = data.histogram_bytes(name, step, layer)
                    if not room.take(blob):
                        return
                    batch.histograms.append(wire.decode_histogram(blob))
                except (KeyError, ValueError, OSError):
                    continue  # this layer has none, or the file has changed meanwhile


def _add_status(batch: records.Batch, data: RunData) -> None:
    batch.state, batch.error, batch.last_wall_time = data.status, data.error, data.last_wall_time
    batch.records, batch.expected, batch.broken = data.received, data.expected, data.broken

"""Many records at once, about thirty times faster than one by one; the result is the same.

Records that share a ``Pattern`` are read as columns of one byte matrix. Whatever fits no pattern (warnings, an end,
the first step of a resumed run, damage) is read the ordinary way, in its turn. Nothing is accepted here that the
ordinary way would refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np

from cockpit_core.events.pattern import Pattern, read_numbers, read_small
from cockpit_core.events.table import KINDS, StoredRows, Table
from cockpit_core.foundation import records

FEW = 6  # fewer records alike are not worth a pattern
FEW_KNOWN = 3  # or using one that is there
MANY_PATTERNS = 64  # a run whose records all differ is read the ordinary way


class Alike(NamedTuple):
    """Records that fit one pattern: their places in the list, and their bytes ``[records, bytes]``."""

    pattern: Pattern
    places: np.ndarray
    matrix: np.ndarray


def add_records(table: Table, payloads: Sequence[bytes], add_one: Callable[[bytes], object]) -> None:
    """The same as ``add_one(payload)`` for all of them, in order."""
    alike = _find_alike(payloads, table.patterns)
    place, count = 0, len(payloads)
    while place < count:
        usable = np.zeros(count + 1, dtype=bool)
        for some in alike:
            if _is_welcome(table, some.pattern.record):
                usable[some.places] = True
        end = place + int(np.argmin(usable[place:]))  # the first that is not
        if end > place and _add_stretch(table, alike, place, end):
            place = end
        else:
            last = max(place + 1, end)
            for payload in payloads[place:last]:
                add_one(payload)
            place = last


def _find_alike(payloads: Sequence[bytes], known: dict[int, Pattern]) -> list[Alike]:
    """``known`` keeps the last pattern of each length: a live run is read a few records at a time, and they are alike."""
    by_length: dict[int, list[int]] = {}
    for place, payload in enumerate(payloads):
        by_length.setdefault(len(payload), []).append(place)
    alike: list[Alike] = []
    for length, members in by_length.items():
        if not length or len(members) < (FEW_KNOWN if length in known else FEW):
            continue
        places = np.array(members)
        matrix = np.frombuffer(b"".join(payloads[place] for place in members), np.uint8).reshape(-1, length)
        while places.size >= FEW_KNOWN and len(alike) < MANY_PATTERNS:
            try:
                pattern = _find_pattern(payloads[places[0]], matrix[:1], known, places.size >= FEW)
            except ValueError:
                places, matrix = places[1:], matrix[1:]
                continue
            fits = pattern.fits(matrix)
            alike.append(Alike(pattern, places[fits], matrix[fits]))
            places, matrix = places[~fits], matrix[~fits]
    return alike


def _find_pattern(payload: bytes, row: np.ndarray, known: dict[int, Pattern], may_make: bool) -> Pattern:
    pattern = known.get(len(payload))
    if pattern is None or not pattern.fits(row)[0]:
        if not may_make:
            raise ValueError("too few for a pattern of their own")
        pattern = Pattern(payload)
        if len(known) >= MANY_PATTERNS:
            known.clear()
        known[len(payload)] = pattern
    return pattern


def _is_welcome(table: Table, record: records.Record) -> bool:
    """Whether the table would take such a record without dropping others or refusing it."""
    resumes = record.kind == "step" and record.generation > table.stepped
    fits = all(vector.size == table.width for vector in record.layers.values())
    return not resumes and fits and table.has_room(record)


def _add_stretch(table: Table, alike: list[Alike], start: int, end: int) -> bool:
    """Take the records from ``start`` to ``end``, which all have a known pattern; False if they are not in order."""
    parts = []
    for pattern, places, matrix in alike:
        first, last = np.searchsorted(places, (start, end))
        if first < last:
            parts.append(Alike(pattern, places[first:last] - start, matrix[first:last]))
    rows = _read_rows(parts, end - start)
    if rows.seq[0] < table.next_seq or (np.diff(rows.seq.astype(np.int64)) <= 0).any():
        return False
    if not _has_ordered_fits(table, parts):
        return False
    base = len(table)
    _extend_columns(table, base, parts)
    for pattern, places, matrix in parts:
        _extend_layers(table, pattern, base + places, matrix)
        _extend_lists(table, pattern, rows.seq[places].tolist(), rows.step[places].tolist(), matrix)
    if len(parts) > 1:
        for items in table.lists():
            items.sort(table.next_seq)
    generations = np.empty(end - start, np.uint32)
    for pattern, places, _ in parts:
        generations[places] = pattern.record.generation
    table.extend_rows(rows, generations)
    return True


def _has_ordered_fits(table: Table, parts: list[Alike]) -> bool:
    """Whether each fit has a later step than all before it. One that has not replaces them, the ordinary way."""
    places = [places for pattern, places, _ in parts for _ in pattern.alphas]
    steps = [read_small(matrix, at).astype(np.int64) for pattern, _, matrix in parts for at, _ in pattern.alphas]
    if not steps:
        return True
    order = np.argsort(np.concatenate(places), kind="stable")
    ordered = np.concatenate(steps)[order]
    return ordered[0] > table.alphas.last_step and bool((np.diff(ordered) > 0).all())


def _read_rows(parts: list[Alike], count: int) -> StoredRows:
    rows = StoredRows(*(np.zeros(count, dtype) for dtype in ("u4", "u4", "f8", "f8", "f8", "u1", "u1")))
    for pattern, places, matrix in parts:
        rows.seq[places] = read_small(matrix, pattern.small.get("seq"))
        rows.step[places] = read_small(matrix, pattern.small.get("step"))
        rows.time[places] = read_numbers(matrix, pattern.doubles.get("time"))[:, 0]
        rows.wall_time[places] = read_numbers(matrix, pattern.doubles.get("wall_time"))[:, 0]
        has_epoch = "epoch" in pattern.doubles
        rows.epoch[places] = read_numbers(matrix, pattern.doubles["epoch"])[:, 0] if has_epoch else np.nan
        rows.triggered[places] = pattern.record.triggered
        rows.kind[places] = KINDS.index(pattern.record.kind)
    return rows


def _extend_columns(table: Table, base: int, parts: list[Alike]) -> None:
    if len(parts) > 1:
        for name, (places, values, texts) in _join(parts).items():
            table.extend_columns((base + places).astype(np.uint32).tobytes(), [(name, values)])
            table.extend_texts(name, texts)
        return
    ((pattern, places, matrix),) = parts  # all records alike, as mostly: in order already, and rows are the same
    table.extend_columns((base + places).astype(np.uint32).tobytes(), _read_columns(pattern, matrix))
    for name, (_, method) in pattern.record.estimates.items():
        table.extend_texts("error/" + name, [method] * len(places))


Joined = tuple[np.ndarray, np.ndarray, list[str]]


def _join(parts: list[Alike]) -> dict[str, Joined]:
    """Places and values of each name, over all patterns, in order of place."""
    pieces: dict[str, list[tuple[np.ndarray, np.ndarray, str]]] = {}
    for pattern, places, matrix in parts:
        methods = {"error/" + name: method for name, (_, method) in pattern.record.estimates.items()}
        for name, values in _read_columns(pattern, matrix):
            pieces.setdefault(name, []).append((places, values, methods.get(name, "")))
    joined = {name: _join_pieces(some, name.startswith("error/")) for name, some in pieces.items()}
    return dict(sorted(joined.items(), key=lambda item: item[1][0][0]))  # columns appear as they would one by one


def _read_columns(pattern: Pattern, matrix: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Each name with its value in each record."""
    record = pattern.record
    scalars = np.ascontiguousarray(read_numbers(matrix, pattern.scalars, len(record.scalars)).T)
    yield from zip(record.scalars, scalars, strict=True)
    for name, at in zip(record.costs, pattern.costs, strict=True):
        yield "cost/" + name, read_numbers(matrix, at)[:, 0]
    for name, at in zip(record.estimates, pattern.estimates, strict=True):
        yield "error/" + name, read_numbers(matrix, at)[:, 0]


def _join_pieces(pieces: list[tuple[np.ndarray, np.ndarray, str]], with_texts: bool) -> Joined:
    if len(pieces) == 1:
        ((places, values, text),) = pieces
        return places, values, [text] * len(places) if with_texts else []
    places = np.concatenate([piece[0] for piece in pieces])
    values = np.concatenate([piece[1] for piece in pieces])
    order = np.argsort(places, kind="stable")
    texts = [text for some, _, text in pieces for _ in range(len(some))] if with_texts else []
    return places[order], values[order], [texts[i] for i in order] if with_texts else []


def _extend_layers(table: Table, pattern: Pattern, rows: np.ndarray, matrix: np.ndarray) -> None:
    for (name, vector), at in zip(pattern.record.layers.items(), pattern.layers, strict=True):
        values = read_numbers(matrix, at, vector.size, vector.dtype.str)
        table.extend_layers(name, rows, values, pattern.record.layers_missing.get(name))


def _extend_lists(table: Table, pattern: Pattern, seqs: list[int], steps: list[int], matrix: np.ndarray) -> None:
    record = pattern.record
    generation = record.generation
    for fit, (step_at, numbers) in zip(record.alphas, pattern.alphas, strict=True):
        own = read_small(matrix, step_at).tolist()
        table.alphas.extend(seqs, generation, own, _make_fits(fit, own, numbers, matrix))
    for name, reason in record.missing.items():
        table.missing.extend(seqs, generation, steps, zip(steps, repeat(name), repeat(reason)))
    if pattern.top_samples:
        samples = np.stack([read_small(matrix, span) for span in pattern.top_samples], axis=1).tolist()
        table.top_samples.extend(seqs, generation, steps, map(tuple, samples))


def _make_fits(
    example: records.AlphaFit, steps: list[int], numbers: dict[str, int], matrix: np.ndarray
) -> Iterator[tuple]:
    """One fit per record; a number that is not in the bytes is what it is in the example, zero or none."""
    columns: dict[str, Iterable[Any]] = {name: repeat(value) for name, value in vars(example).items()}
    for name, at in numbers.items():
        if name != "alpha" or example.alpha is not None:
            columns[name] = read_numbers(matrix, at)[:, 0].tolist()
    columns["step"] = steps
    return zip(*columns.values(), strict=False)  # some repeat forever

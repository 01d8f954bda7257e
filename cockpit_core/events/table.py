"""The columns of one run, growing record by record.

A record is taken apart once, when it arrives; nothing is rebuilt later, except when a resumed run goes back to an
earlier step and replaces rows.
"""

from __future__ import annotations

import bisect
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np

from cockpit_core.events.layer_column import LayerColumn, Layout, between
from cockpit_core.foundation import records

MAX_NAMES = 100_000  # columns of one run; a page cannot show a hundredth of them
KINDS = ("step", "log", "start", "end")
_NOTHING = np.empty(0)


class StoredRows(NamedTuple):
    """One entry per record, in order of ``seq``."""

    seq: np.ndarray  # uint32
    step: np.ndarray  # uint32
    time: np.ndarray  # float64, seconds since the run began
    wall_time: np.ndarray  # float64, seconds since 1970
    epoch: np.ndarray  # float64, NaN = none
    triggered: np.ndarray  # uint8
    kind: np.ndarray  # uint8, index into KINDS


class MissingValue(NamedTuple):
    step: int
    name: str
    reason: str


class Dated:
    """Things that travelled in records, in that order, each with the record's number and generation, and with its step.

    There may be one per step, so they are held as tuples of plain values: the garbage collector looks at all other
    objects again and again, which training would pay for. ``make`` turns a tuple into what it stands for.
    """

    def __init__(self, make: Callable[[tuple], Any]) -> None:
        self._make = make
        self._dates: tuple[array[int], ...] = tuple(array("I") for _ in range(3))
        self._items: list[tuple] = []

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Any]:
        return map(self._make, self._items)

    @property
    def last_step(self) -> int:
        """The step of the last one; -1 if there is none."""
        return self._dates[2][-1] if self._items else -1

    def extend(self, seqs: Iterable[int], generation: int, steps: Sequence[int], items: Iterable[tuple]) -> None:
        """Items of several records of one generation."""
        for dates, values in zip(self._dates, (seqs, repeat(generation, len(steps)), steps), strict=True):
            dates.extend(values)
        self._items.extend(items)

    def append(self, seq: int, generation: int, step: int, item: tuple) -> None:
        for dates, value in zip(self._dates, (seq, generation, step), strict=True):
            dates.append(value)
        self._items.append(item)

    def forget_from(self, step: int) -> None:
        """The items at the end that belong to this step or a later one."""
        first, steps = len(self), self._dates[2]
        while first and steps[first - 1] >= step:
            first -= 1
        for dates in self._dates:
            del dates[first:]
        del self._items[first:]

    def sort(self, since: int) -> None:
        """Bring what came from records with ``seq >= since`` into the order of ``seq``; it stands at the end."""
        seqs = self._dates[0]
        first = bisect.bisect_left(seqs, since)
        order = sorted(range(first, len(self)), key=seqs.__getitem__)
        self._items[first:] = [self._items[i] for i in order]
        for dates in self._dates:
            dates[first:] = array("I", [dates[i] for i in order])

    def drop(self, drop: Drop) -> None:
        """Forget what earlier generations know about that step and later ones."""
        _, generations, steps = (np.array(dates, dtype=np.uint32) for dates in self._dates)
        mask = (steps < drop.step) | (generations >= drop.generation)
        if mask.all():
            return
        kept = np.flatnonzero(mask).tolist()
        self._dates = tuple(array("I", [dates[i] for i in kept]) for dates in self._dates)
        self._items = [self._items[i] for i in kept]

    def between(self, since: int, until: int) -> Iterator[tuple[int, Any]]:
        """The number of the record and the item, of records ``since`` to ``until`` (exclusive)."""
        seqs = self._dates[0]
        span = slice(bisect.bisect_left(seqs, since), bisect.bisect_left(seqs, until))
        return zip(seqs[span], map(self._make, self._items[span]), strict=True)


class Drop(NamedTuple):
    """At record ``seq`` a resumed run replaced everything earlier from ``step`` on."""

    seq: int
    step: int
    generation: int


@dataclass
class Column:
    """Values of one name, and the rows they belong to."""

    rows: array[int] = field(default_factory=lambda: array("I"))
    values: array[float] = field(default_factory=lambda: array("d"))
    texts: list[str] = field(default_factory=list)  # only for estimates: the method

    def get(self, first: int = 0, last: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Copies of rows and values, from row ``first`` on, before row ``last``."""
        part = between(self.rows, first, last)
        return np.array(self.rows[part], np.uint32), np.array(self.values[part], np.float64)

    def part(self, first: int, last: int | None, count: int) -> tuple[np.ndarray | None, np.ndarray]:
        """The same of ``count`` rows; None for the rows if each of them has a value, as mostly: then nothing is searched."""
        rows, start = self.rows, len(self.rows) - count
        if not rows or rows[-1] < first:
            return None, _NOTHING
        if last is None and start >= 0 and rows[start] == first:
            return None, np.frombuffer(self.values[start:], np.float64)  # a slice is a copy
        part = between(rows, first, last)
        values = np.frombuffer(self.values[part], np.float64)
        return None if values.size == count else np.frombuffer(rows[part], np.uint32), values

    def keep(self, kept: np.ndarray, renumber: np.ndarray) -> None:
        rows, values = self.get()
        mask = kept[rows]
        self.rows, self.values = array("I", renumber[rows[mask]].tolist()), array("d", values[mask].tobytes())
        if self.texts:
            self.texts = [text for text, ok in zip(self.texts, mask, strict=True) if ok]


class Table:
    """Rows, columns and lists of one run. ``add`` takes records in order of ``seq`` and ignores what it has."""

    def __init__(self) -> None:
        self.header: records.Header | None = None
        self.layer_index: dict[str, int] = {}  # every layer that any header named
        self.layer_places: dict[str, int] = {}  # of the current header
        self._layout = Layout([])  # of the current header
        self._rows: tuple[array[Any], ...] = tuple(array(code) for code in "IIdddBB")
        self._generations = array("I")
        self.columns: dict[str, Column] = {}
        self.layer_columns: dict[str, LayerColumn] = {}
        self.alphas = Dated(lambda item: records.AlphaFit(*item))
        self.notices = Dated(lambda item: records.Notice(*item))
        self.findings = Dated(lambda item: records.Finding(*item))
        self.missing = Dated(MissingValue._make)
        self.top_samples = Dated(list)
        self.drops: list[Drop] = []
        self.next_seq = 0
        self.accepted = 0
        self.generation = 0
        self.end: records.Record | None = None
        self.header_seq = 0  # how many records were known when the header came
        self.steps_taken = 0
        self.stepped = 0  # the generation of the last record of kind "step"
        self.patterns: dict[int, Any] = {}  # how the bytes of recent records are laid out, see bulk.py

    def __len__(self) -> int:
        return len(self._generations)

    def set_header(self, header: records.Header) -> None:
        if self.header is not None and header.revision < self.header.revision:
            return
        self.header, self.header_seq = header, self.next_seq
        for layer in header.layers:
            self.layer_index.setdefault(layer.name, len(self.layer_index))
        self.layer_places = {layer.name: place for place, layer in reversed(list(enumerate(header.layers)))}
        layers = [self.layer_index[layer.name] for layer in header.layers]
        if layers != self._layout.layers:
            self._layout = Layout(layers)

    @property
    def width(self) -> int:
        """Layers of the current header."""
        return self._layout.width

    def add(self, record: records.Record) -> bool:
        """False if it is already known. Raises ValueError if it does not fit the header."""
        if record.seq < self.next_seq:
            return False
        if any(vector.size != self.width for vector in record.layers.values()):
            raise ValueError(f"record {record.seq} does not have {self.width} values per layer vector")
        if not self.has_room(record):
            raise ValueError(f"record {record.seq} brings more names than the {MAX_NAMES} that a run may have")
        if record.kind == "step" and record.generation > self.stepped:
            self._drop(Drop(record.seq, record.step, record.generation))
            self.stepped = record.generation
        self.generation = max(self.generation, record.generation)
        self.next_seq, self.accepted = record.seq + 1, self.accepted + 1
        row = len(self)
        epoch = float("nan") if record.epoch is None else record.epoch
        entry = (record.seq, record.step, record.time, record.wall_time, epoch, record.triggered)
        for target, value in zip(self._rows, (*entry, KINDS.index(record.kind)), strict=True):
            target.append(value)
        self._generations.append(record.generation)
        self.steps_taken += record.kind == "step"
        self._add_values(row, record)
        self._add_lists(record)
        self.end = record if record.kind == "end" else None
        return True

    def has_room(self, record: records.Record) -> bool:
        """Whether all its names are known, or there is room for the new ones: a column takes far more memory than a
        name."""
        named = (len(x) for x in (record.scalars, record.costs, record.estimates, record.layers))
        room = MAX_NAMES - len(self.columns) - len(self.layer_columns)
        if sum(named) <= room:
            return True
        fresh = _name_values(record).keys() - self.columns.keys()
        return len(fresh) + len(record.layers.keys() - self.layer_columns.keys()) <= room

    def _add_values(self, row: int, record: records.Record) -> None:
        known = self.columns
        for name, (value, text) in _name_values(record).items():
            column = known.get(name) or self._column(name)
            column.rows.append(row)
            column.values.append(value)
            if text is not None:
                column.texts.append(text)
        for name, vector in record.layers.items():
            self._layer_column(name).append(row, vector, record.layers_missing.get(name), self._layout)

    # ---- many records at once, see bulk.py ----

    def extend_rows(self, rows: StoredRows, generations: np.ndarray) -> None:
        """Rows that belong after all others, of generations that have begun; their values are there already."""
        for target, values in zip(self._rows, rows, strict=True):
            target.frombytes(values.tobytes())
        self._generations.frombytes(generations.astype(np.uint32).tobytes())
        self.generation = max(self.generation, int(generations.max()))
        self.next_seq, self.accepted = int(rows.seq[-1]) + 1, self.accepted + rows.seq.size
        self.steps_taken += int((rows.kind == KINDS.index("step")).sum())
        self.end = None

    def extend_columns(self, rows: bytes, columns: Iterable[tuple[str, np.ndarray]]) -> None:
        """Values (float64) of several names in the same rows (bytes of uint32)."""
        known = self.columns
        for name, values in columns:
            column = known.get(name) or self._column(name)
            column.rows.frombytes(rows)
            column.values.frombytes(values.tobytes())

    def extend_texts(self, name: str, texts: list[str]) -> None:
        self._column(name).texts += texts

    def extend_layers(self, name: str, rows: np.ndarray, values: np.ndarray, absent: np.ndarray | None) -> None:
        self._layer_column(name).extend(rows, values, absent, self._layout)

    def lists(self) -> tuple[Dated, ...]:
        return self.alphas, self.notices, self.findings, self.missing, self.top_samples

    def _column(self, name: str) -> Column:
        column = self.columns.get(name)
        if column is None:
            column = self.columns[name] = Column()
        return column

    def _layer_column(self, name: str) -> LayerColumn:
        column = self.layer_columns.get(name)
        if column is None:
            column = self.layer_columns[name] = LayerColumn()
        return column

    def _add_lists(self, record: records.Record) -> None:
        seq, generation, step = record.seq, record.generation, record.step
        for fit in record.alphas:
            self.alphas.forget_from(fit.step)  # measured again after a resume
            self.alphas.append(seq, generation, fit.step, tuple(vars(fit).values()))
        for notice in record.notices:
            self.notices.append(seq, generation, notice.step, tuple(vars(notice).values()))
        for finding in record.findings:
            self.findings.append(seq, generation, step, tuple(vars(finding).values()))
        for name, reason in record.missing.items():
            self.missing.append(seq, generation, step, (step, name, reason))
        if record.top_samples:
            self.top_samples.append(seq, generation, step, tuple(record.top_samples))

    def _drop(self, drop: Drop) -> None:
        """Forget what earlier generations know about ``drop.step`` and later steps."""
        self.drops.append(drop)
        for items in self.lists():
            items.drop(drop)
        steps, generations = np.array(self._rows[1]), np.array(self._generations)
        kept = (steps < drop.step) | (generations >= drop.generation)
        if kept.all():
            return
        renumber = np.cumsum(kept) - 1
        self._rows = tuple(array(rows.typecode, np.array(rows)[kept].tobytes()) for rows in self._rows)
        self._generations = array("I", generations[kept].astype(np.uint32).tobytes())
        for column in self.columns.values():
            column.keep(kept, renumber)
        for matrix in self.layer_columns.values():
            matrix.keep(kept, renumber)

    def rows(self, first: int = 0, last: int | None = None) -> StoredRows:
        """Copies, from row ``first`` on, before row ``last``."""
        return StoredRows(*(np.array(rows[first:last], dtype=rows.typecode) for rows in self._rows))

    def generations(self) -> list[int]:
        """Of each row."""
        return list(self._generations)

    def steps(self) -> np.ndarray:
        return np.array(self._rows[1], dtype=np.int64)

    def find_row(self, seq: int) -> int:
        """The first row with at least this ``seq``."""
        return bisect.bisect_left(self._rows[0], seq)


def _name_values(record: records.Record) -> dict[str, tuple[float, str | None]]:
    """Value of each column, and for an error its method. One per name: a scalar called "error/X" is no second estimate."""
    values: dict[str, tuple[float, str | None]] = {
        name: (value, "" if name.startswith("error/") else None) for name, value in record.scalars.items()
    }
    values |= {"cost/" + name: (seconds, None) for name, seconds in record.costs.items()}
    values |= {"error/" + name: estimate for name, estimate in record.estimates.items()}
    return values

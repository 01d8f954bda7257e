"""What a run takes in: files that grow, or what a host feeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from cockpit_core.events.bulk import add_records
from cockpit_core.events.heavy import Fetch, HeavyIndex, make_fetch
from cockpit_core.events.reader import EventFile, Located, find_event_files, is_event_file
from cockpit_core.events.summary import PLUGIN
from cockpit_core.events.table import Table
from cockpit_core.events.words import explain_nothing
from cockpit_core.foundation import records
from cockpit_core.schema import tags, wire

if TYPE_CHECKING:
    from cockpit_core.events.writer import Written

T = TypeVar("T", bound="Taking")
_BULK = 4096
MAX_NOTICES = 100_000  # of one run; a page keeps 5,000


class Taking:
    """Reads what has been appended since, and costs in proportion to that. ``RunData`` asks what it has read."""

    def __init__(self, path: str | Path | None = None) -> None:
        """``RunData()`` without a path is empty and fed by a host, see ``feed_header`` and the methods after it."""
        self.path = Path(path) if path is not None else None
        self._forget()
        if self.path is not None:
            if not self._list_files():
                raise FileNotFoundError(explain_nothing(self.path))
            self.refresh()
            if self.path.is_file() and not is_event_file(self.path.name) and self._is_empty():
                raise ValueError(f"{self.path} holds no event that Cockpit wrote; pass the log directory of a run")

    def _is_empty(self) -> bool:
        return self.table.header is None and not len(self.table) and not self._heavy.names

    def _forget(self) -> None:
        self._files: dict[Path, EventFile] = {}
        self._generations: dict[Path, int] = {}
        self.table = Table()
        self._heavy = HeavyIndex()
        self._fed_broken = 0
        self._last_event = 0.0

    # ---- following the files ----

    def _list_files(self) -> list[Path]:
        assert self.path is not None
        return [self.path] if self.path.is_file() else find_event_files(self.path)

    def refresh(self: T) -> T:
        """Read what is new. If the files were replaced by others, everything is read again."""
        if self.path is None:
            return self
        paths = self._list_files()
        if any(file.size() < file.offset for file in self._files.values()):
            self._forget()
        for path in paths:
            file = self._files.setdefault(path, EventFile(path))
            waiting: list[bytes] = []  # records are quicker in bulk
            for located in file.read():
                self._last_event = max(self._last_event, located.event.wall_time)
                if located.event.is_plain:
                    continue
                try:
                    self._take(path, located, waiting)
                except ValueError:
                    self._fed_broken += 1
                if len(waiting) >= _BULK:
                    self._flush(waiting)
            self._flush(waiting)
        return self

    def _take(self, path: Path, located: Located, waiting: list[bytes]) -> None:
        for value in located.event.values:
            if value.content and value.plugin == PLUGIN:
                self._note_generation(path, value.content)
            if value.tag.startswith(tags.HEAVY):
                generation = self._generations.get(path, self.table.generation)
                fetch = make_fetch(path, located.offset, located.end, value.tag)
                self.feed_heavy(tags.heavy_quantity(value.tag), located.event.step, fetch, generation)
            elif value.tag.startswith(tags.RECORDS):
                waiting.append(value.read_string())
            elif value.tag == tags.HEADER:
                self._flush(waiting)  # they belong to the header before
                self.feed_header(value.read_string())

    def _note_generation(self, path: Path, content: bytes) -> None:
        try:
            self._generations[path] = wire.decode_series(content)[1]
        except ValueError:
            self._fed_broken += 1  # what is beside it may be sound

    def _flush(self, waiting: list[bytes]) -> None:
        self.feed_records(waiting)
        waiting.clear()

    def _add(self, record: records.Record) -> None:
        known = len(self.table.drops)
        self.table.add(record)
        for drop in self.table.drops[known:]:
            self._heavy.drop(drop)

    # ---- being fed by a host that has the bytes from elsewhere (TensorBoard's data provider) ----

    def feed_header(self, payload: bytes) -> bool:
        """The payload of ``cockpit/header``; False (and counted as broken) if it cannot be read."""
        try:
            self.table.set_header(wire.decode_header(payload))
            return True
        except ValueError:
            self._fed_broken += 1
            return False

    def feed_record(self, payload: bytes) -> bool:
        """The payload of ``cockpit/records/*``, in order of ``seq``; known ones are ignored."""
        try:
            self._add(wire.decode_record(payload, max(0, MAX_NOTICES - len(self.table.notices))))
            return True
        except ValueError:
            self._fed_broken += 1
            return False

    def feed_records(self, payloads: Sequence[bytes]) -> None:
        """Many of them, in order of ``seq``: the same, only faster."""
        add_records(self.table, payloads, self.feed_record)

    def feed_heavy(self, quantity: str, step: int, fetch: Fetch, generation: int | None = None) -> bool:
        """A histogram of ``step`` exists, and ``fetch(0)`` is the network's, ``fetch(i + 1)`` that of layer ``i``.

        False (and counted as broken) if no run can have such a step.
        """
        try:
            self._heavy.add(quantity, step, self.table.generation if generation is None else generation, fetch)
            return True
        except ValueError:
            self._fed_broken += 1
            return False

    def feed_written(self, path: Path, written: Iterable[bytes | Written]) -> None:
        """What the writer of ``path`` told its listener, in order: the same as reading it there, without the reading.

        It may overlap with what is known already, as long as it holds everything after its own beginning.
        """
        waiting: list[bytes] = []
        for item in written:
            if isinstance(item, bytes):  # a record
                waiting.append(item)
            elif isinstance(item.payload, bytes):
                self._flush(waiting)  # they belong to the header before
                self.feed_header(item.payload)
            else:
                generation = self._generations.get(path, self.table.generation)
                fetch = make_fetch(path, item.offset, item.end, item.tag)
                self.feed_heavy(tags.heavy_quantity(item.tag), item.step, fetch, generation)
        self._flush(waiting)

    @property
    def files(self) -> list[EventFile]:
        return list(self._files.values())

"""Reading event files that may be cut, damaged, or still being written. Nothing in here raises on bad bytes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from cockpit_core.events.framing import FOOT, HEAD, Frame, find_heads, look
from cockpit_core.events.summary import Event, decode_event

SUFFIX = ".cockpit"
MARK = "tfevents"  # TensorBoard reads only files with this in their name
_CHUNK = 1 << 20
AGAIN = 8  # how many times its size a file may be searched again for records inside damaged ones


class Located(NamedTuple):
    """An event and where it stands, so that heavy data can be fetched again later."""

    event: Event
    offset: int
    end: int


class EventFile:
    """A cursor over one file. Each ``read()`` yields what has been appended since the last one.

    ``offset`` is the first byte not yet consumed and ``broken`` counts what had to be skipped. An incomplete record
    is not broken: it may just be being written, and is looked at again next time.
    ``events`` and ``bytes_read`` count what was read so far.
    """

    def __init__(self, path: str | Path, offset: int = 0) -> None:
        self.path = Path(path)
        self.offset = offset
        self.broken = 0
        self.events = 0
        self.bytes_read = 0
        self._checked_again = 0  # bytes
        self._searching = False  # inside damage, looking for the next sound record
        self._need = 0  # how many bytes beyond the buffer the record at ``offset`` needs

    def size(self) -> int:
        """Current size, or -1 if the file has gone."""
        try:
            return self.path.stat().st_size
        except OSError:
            return -1

    def read(self) -> Iterator[Located]:
        if self.size() <= self.offset:
            return
        try:
            with open(self.path, "rb") as file:
                yield from self._read_from(file)
        except OSError:  # gone, or no longer readable: what is known stays
            return

    def _read_from(self, file: BinaryIO) -> Iterator[Located]:
        data, base, self._need = b"", self.offset, 0
        file.seek(base)
        while True:
            left = os.fstat(file.fileno()).st_size - base - len(data)
            if left <= 0 or self._need > left:  # never read towards a length that the file does not have
                return
            more = file.read(min(left, max(_CHUNK, self._need)))
            if not more:
                return
            self.bytes_read += len(more)
            data, base = data[self.offset - base :] + more, self.offset
            yield from self._take(data, base)

    def _take(self, data: bytes, base: int) -> Iterator[Located]:
        """All events that are complete in ``data``, whose first byte is byte ``base`` of the file."""
        position = 0
        heads: np.ndarray | None = None  # sound lengths in ``data``: looked for once, however often there is damage
        while True:
            if self._searching:
                heads = find_heads(data, position) if heads is None else heads
                hits = heads[np.searchsorted(heads, position) :]
                position = int(hits[0]) if hits.size else max(position, len(data) - HEAD + 1)
                self.offset, self._searching, self._need = base + position, not hits.size, 0
                if self._searching:
                    return
            frame = look(data, position)
            if frame.state == "short":
                self._need = frame.end - len(data)
                return
            start, position = position, frame.end
            if frame.state == "whole":
                self.offset = base + position
                event = self._decode(data[frame.start : frame.end - FOOT])
                if event is not None:
                    self.events += 1
                    yield Located(event, base + start, base + position)
                continue
            self.broken += 1
            if frame.state == "lost" or (look(data, frame.end).state == "lost" and self._may_go_back(frame)):
                self._searching, position = True, start + 1
            self.offset = base + position

    def _may_go_back(self, damaged: Frame) -> bool:
        """Whether to look for records inside one whose length is sound and whose payload is not: a truncated record
        may have others in it. There is a limit, because lengths can be made so that each covers all that follow, to
        be checked again and again."""
        self._checked_again += damaged.end - damaged.start
        return self._checked_again <= AGAIN * (self.bytes_read + _CHUNK)

    def _decode(self, payload: bytes) -> Event | None:
        try:
            return decode_event(payload)
        except ValueError:
            self.broken += 1
            return None


def read_events(path: str | Path, offset: int = 0) -> tuple[list[Event], int, int]:
    """All events from ``offset`` on, the offset to go on from, and how many records were damaged."""
    file = EventFile(path, offset)
    events = [located.event for located in file.read()]
    return events, file.offset, file.broken


def read_one(path: str | Path, offset: int, end: int) -> Event:
    """The event that stands at ``offset``; raises ValueError if it no longer does."""
    with open(path, "rb") as file:
        file.seek(offset)
        data = file.read(end - offset)
    frame = look(data, 0)
    if frame.state != "whole" or frame.end != end - offset:
        raise ValueError(f"{path} has changed: there is no whole record at byte {offset}")
    return decode_event(data[frame.start : frame.end - FOOT])


def is_event_file(name: str) -> bool:
    return MARK in name and name.endswith(SUFFIX)


def find_event_files(folder: str | Path) -> list[Path]:
    """Cockpit's event files in one directory, oldest generation first."""
    try:
        names = [name for name in os.listdir(folder) if is_event_file(name)]
    except OSError:
        return []
    return [Path(folder) / name for name in sorted(names, key=file_order)]


def file_order(name: str) -> tuple[int, int, str]:
    """By generation, then by time: both are in the name that the writer gives."""
    parts = name.split(".")
    generation, time = parts[-2], parts[3] if len(parts) > 3 else ""
    return (int(generation) if generation.isdecimal() else 0, int(time) if time.isdecimal() else 0, name)

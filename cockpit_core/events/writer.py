"""Writing a run: one event file per process, every record in one unbuffered append.

When a ``write_*`` method has returned, the bytes are with the operating system: killing the process loses nothing.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from cockpit_core.events import summary
from cockpit_core.events.framing import frame
from cockpit_core.events.logfile import LogFile, find_sign_of_life, make_name
from cockpit_core.events.presence import check_nobody_came_first, check_nobody_writes
from cockpit_core.events.reader import file_order, find_event_files
from cockpit_core.events.resume import Past, read_past
from cockpit_core.events.thinning import Thinning
from cockpit_core.foundation import records
from cockpit_core.foundation.faults import say
from cockpit_core.schema import tags, wire

RECORDS_PER_TAG = 4096  # TensorBoard can only re-read a whole tag
MANY_LAYERS = 200
MANY_VECTOR_BYTES = 4800  # of one record; with its scalars it stays under 8 kB
LAYERS_EVERY = 10
LONGEST_TEXT = 2000  # characters
LARGE_RUN = 1_000_000_000


class Written(NamedTuple):
    """What a listener is told about a header or a histogram: the payload, and where its event is in the file. About a
    record it is told the payload alone: that happens at every step, and nobody needs to look it up again.
    """

    kind: str  # "header" or "heavy"
    tag: str
    step: int
    payload: bytes | list[bytes]
    offset: int
    end: int


class EventWriter:
    """Appends one run to ``logdir``; ``resume=True`` continues the one that is there, in a file of its own.

    ``past`` tells a resumed run where the earlier one ended (None for a new one).
    """

    def __init__(self, logdir: str | Path, *, resume: bool = False) -> None:
        self.logdir = Path(logdir)
        self._made = _make_folder(self.logdir)
        earlier = find_event_files(self.logdir)
        if earlier and not resume:
            raise FileExistsError(
                f"{self.logdir} already holds a run, which is never overwritten. "
                "Choose another logdir, or continue this run with resume=True."
            )
        check_nobody_writes(self.logdir, earlier)
        self.past: Past | None = read_past(earlier) if earlier else None
        past = self.past or Past()
        self.generation = past.generation + 1 if self.past else 0
        self.next_seq = past.next_seq
        self._revision = past.next_revision
        self._heavy = {name: Thinning(len(steps)) for name, steps in past.heavy.items()}
        self._heavy_step: dict[str, int] = {}
        self._bytes = sum(path.stat().st_size for path in earlier)
        self._size_told = self._bytes > LARGE_RUN
        self._told: set[str] = set()
        self._layers_every, self._layer_count = 1, 0
        self._step_records = 0
        self._tags: set[str]
        self._listeners: list[Callable[[bytes | Written], object]] = []
        self._lock = threading.Lock()
        self._header: tuple[int, bytes] | None = None  # the last one, for a file that has to be begun again
        self._closed = False
        self._known = {path.name for path in earlier}  # files of this run
        self._news: list[str] = []  # of the file itself, for the next record
        try:
            self._file = self._begin_file(earlier)
            check_nobody_came_first(self.path, find_event_files(self.logdir), earlier)
        except BaseException:
            self.abandon()
            raise

    @property
    def path(self) -> Path:
        return self._file.path

    def _begin_file(self, earlier: list[Path]) -> LogFile:
        """TensorBoard reads files in the order of their names: a later generation gets a later time."""
        last = max((file_order(path.name)[1] for path in earlier), default=-1)
        file = LogFile(self.logdir / make_name(max(int(time.time()), last + 1), self.generation))
        try:
            file.append(frame(summary.encode_version(time.time())))
        except OSError:
            file.remove()
            raise
        self._bytes += file.size
        self._known.add(file.path.name)
        self._tags = set()
        return file

    # ---- what a run writes ----

    def write_header(self, header: records.Header) -> None:
        """Written again whenever something in it changes; the last one counts. A resumed run keeps its id and its
        start time."""
        notes = list(header.notes)
        self._layers_every, self._layer_count = _choose_layers_every(header), len(header.layers)
        if self._layers_every > 1:
            notes.append(
                f"{len(header.layers)} layers: each layer-wise quantity is stored in every {LAYERS_EVERY}th record only"
            )
        header = replace(header, notes=notes, revision=max(header.revision, self._revision))
        if self.past and self.past.header:
            header = replace(header, run_id=self.past.header.run_id, created=self.past.header.created)
        with self._lock:
            self._revision = header.revision + 1
            encoded = wire.encode_header(header)
            self._header = header.revision, encoded
            self._write_tensor(tags.HEADER, "header", header.revision, encoded)

    def write_record(self, record: records.Record) -> int:
        """Assigns ``seq`` and ``generation``, and returns ``seq``."""
        with self._lock:
            self._see_to_the_file()
            record.seq, record.generation = self.next_seq, self.generation
            stored = _shorten(self._tell_news(self._tell_size(self._thin_layers(record))))
            tag = tags.records_tag(record.seq // RECORDS_PER_TAG)
            self._write_tensor(tag, "records", record.seq, wire.encode_record(stored), record.wall_time)
            self.next_seq += 1
        return record.seq

    def write_heavy(
        self,
        quantity: str,
        step: int,
        network: records.Histogram,
        layers: Sequence[records.Histogram | None] = (),
        *,
        keep: bool = False,
    ) -> bool:
        """False if it was thinned away. ``keep=True`` (a triggered step) asks for it although it is not its turn."""
        with self._lock:
            if step <= self._heavy_step.get(quantity, -1):  # readers require steps to increase
                return False
            if not self._heavy.setdefault(quantity, Thinning()).offer(keep):
                return False
            blobs = [wire.encode_histogram(network)]
            blobs += [wire.encode_histogram(layer) if layer is not None else b"" for layer in layers]
            self._write_tensor(tags.heavy_tag(quantity, self.generation), "heavy", step, blobs, quantity=quantity)
            self._heavy_step[quantity] = step
        return True

    def write_scalars(self, values: Mapping[str, float], step: int) -> None:
        """Plain scalars for TensorBoard's own tabs and for whoever syncs its logs."""
        if values:
            named = {f"{tags.PREFIX}{name}": float(value) for name, value in values.items()}
            with self._lock:
                self._append(summary.encode_scalars(time.time(), step, named))

    def listen(self, listener: Callable[[bytes | Written], object]) -> Callable[[], None]:
        """Call with all that is written from now on: whoever shows a run of this process need not read the file again.

        It must not raise. Returns how to end it, which may be called from anywhere, even by the garbage collector in
        the middle of a write: hence there is no lock, and a new list each time.
        """
        self._listeners = [*self._listeners, listener]

        def end() -> None:
            self._listeners = [other for other in self._listeners if other is not listener]

        return end

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._file.close()

    def abandon(self) -> None:
        """Nothing was ever recorded: leave no trace of the attempt, so that it can be made again."""
        with self._lock:
            self._closed = True
            if hasattr(self, "_file"):
                self._file.remove()
        for folder in self._made:
            try:
                folder.rmdir()
            except OSError:
                return  # somebody else has put something there

    def __enter__(self) -> EventWriter:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- how it gets there ----

    def preview(self, record: records.Record) -> records.Record:
        """The record as it would be stored now, for those who must see what a reader of the log will see."""
        if record.kind != "step" or not record.layers or self._layers_every == 1 or record.triggered:
            return record
        names = choose_names(list(record.layers), self._step_records % self._layers_every, self._layer_count)
        absent = {name: record.layers_missing[name] for name in names if name in record.layers_missing}
        return replace(record, layers={name: record.layers[name] for name in names}, layers_missing=absent)

    def _thin_layers(self, record: records.Record) -> records.Record:
        thinned = self.preview(record)
        self._step_records += record.kind == "step" and bool(record.layers)
        return thinned

    def _tell_size(self, record: records.Record) -> records.Record:
        if self._size_told or self._bytes <= LARGE_RUN:
            return record
        self._size_told = True
        message = "This log has passed 1 GB. A longer schedule, fewer layers or coarser histograms make it smaller."
        return replace(record, notices=[*record.notices, records.Notice(record.step, "size", message)])

    def _write_tensor(
        self,
        tag: str,
        kind: str,
        step: int,
        payload: bytes | list[bytes],
        wall_time: float | None = None,
        quantity: str = "",
    ) -> None:
        metadata = b""
        if tag not in self._tags:  # on the first value of each tag in each file
            data_class = summary.CLASS_TENSOR if isinstance(payload, bytes) else summary.CLASS_BLOB_SEQUENCE
            metadata = summary.encode_metadata(wire.encode_series(kind, self.generation, quantity), data_class)
        value = summary.encode_tensor(tag, payload, metadata)
        offset = self._file.size
        self._append(summary.encode_event(time.time() if wall_time is None else wall_time, step, [value]))
        self._tags.add(tag)
        for listener in self._listeners:
            if kind == "records" and isinstance(payload, bytes):
                listener(payload)
            else:
                listener(Written(kind, tag, step, payload, offset, self._file.size))

    def _append(self, event: bytes) -> None:
        if self._closed:
            raise ValueError(f"the log in {self.logdir} is closed")
        before = self._file.size
        self._file.append(frame(event))
        self._bytes += self._file.size - before

    def _see_to_the_file(self) -> None:
        """If somebody has deleted it, go on in a new one, which begins with the header."""
        if self._closed:
            return
        reason, moved_to = self._file.find_loss(), self._file.moved_to
        if moved_to and "moved" not in self._told:
            self._told.add("moved")
            self._tell(f"{self.path} was moved to {moved_to}; what follows is written there")
        if not reason:
            return
        lost = self._file
        _make_folder(self.logdir)
        there = find_event_files(self.logdir)
        if any(path.name not in self._known or is_of_another(path, lost) for path in there):
            self._known.discard(lost.path.name)  # even when the other one has ended
            raise FileExistsError(
                f"{lost.path} {reason}, and another run is in its place: no more of this one can be written"
            )
        self._file = self._begin_file([lost.path, *there])
        lost.close()
        if self._header is not None:
            self._write_tensor(tags.HEADER, "header", *self._header)
        self._tell(f"{lost.path} {reason} while it was written; what follows is in {self.path.name}")

    def _tell(self, news: str) -> None:
        self._news.append(news)
        if "lost" not in self._told or "moved" in news:
            self._told.add("lost")
            say(f"Cockpit: {news}.")

    def _tell_news(self, record: records.Record) -> records.Record:
        news, self._news = self._news, []
        notices = [records.Notice(record.step, "error", text, "log") for text in news]
        return replace(record, notices=[*record.notices, *notices]) if notices else record


def is_of_another(path: Path, lost: LogFile) -> bool:
    """Two runs of one process that begin in the same second choose the same name; a copy of ours has it too, but nobody
    writes it."""
    return path.name == lost.path.name and not lost.is_at(path) and find_sign_of_life(path) == "locked"


def _shorten(record: records.Record) -> records.Record:
    """A traceback in a message must not make a light record heavy."""
    if len(record.error) > LONGEST_TEXT:
        record = replace(record, error=_cut(record.error))
    if any(len(reason) > LONGEST_TEXT for reason in record.missing.values()):
        record = replace(record, missing={name: _cut(reason) for name, reason in record.missing.items()})
    if any(len(notice.message) > LONGEST_TEXT for notice in record.notices):
        record = replace(record, notices=[replace(x, message=_cut(x.message)) for x in record.notices])
    return record


def _cut(text: str) -> str:
    """The end of a text says more than its middle: that is where an exception names itself."""
    half = LONGEST_TEXT // 2
    return text if len(text) <= LONGEST_TEXT else f"{text[:half]} ... {text[-half:]}"


def _choose_layers_every(header: records.Header) -> int:
    layerwise = sum(q.layerwise and q.kind == "scalar" for q in header.quantities)
    many = len(header.layers) > MANY_LAYERS or 4 * layerwise * len(header.layers) > MANY_VECTOR_BYTES
    return LAYERS_EVERY if many else 1


def choose_names(names: list[str], turn: int, layers: int) -> list[str]:
    """Which vectors stand in this record, of ``LAYERS_EVERY`` in a row: as many as leave it light, one after the other.
    Where all of them do not fit into so many records, the last one takes the rest."""
    each = max(1, MANY_VECTOR_BYTES // (4 * max(1, layers)))
    last = turn == LAYERS_EVERY - 1
    return names[turn * each :] if last else names[turn * each : (turn + 1) * each]


def _make_folder(folder: Path) -> list[Path]:
    """Returns the folders that were not there before, innermost first."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(errno.ENOTDIR, "logdir is a file, not a directory", str(folder)) from None
    except PermissionError:
        raise PermissionError(errno.EACCES, "cannot create the logdir here; choose another one", str(folder)) from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, "logdir is not writable; choose another one", str(folder))
    return missing

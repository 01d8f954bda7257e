"""One run, followed through the data provider: what was decoded stays, and only what may have grown is read again."""

from __future__ import annotations

import math
import threading
import time
from functools import partial
from typing import Any, NamedTuple

from tensorboard import errors

from cockpit_core.events.batch import encode_batch
from cockpit_core.events.data import RunData
from cockpit_core.events.heavy import check_shown
from cockpit_core.schema import wire
from cockpit_core.schema.limits import UINT32_MAX
from cockpit_core.schema.tags import HEADER, RECORDS, records_tag
from tb_plugin.provider import Asker
from tb_plugin.quick import Datum

# A long run is decoded in parts: after this many seconds of reading, a request is answered with what is there, and
# the page, which sees that records are missing, asks again.
PATIENCE = 1.5
SLACK = 1.0  # seconds; the first record of a run may be a little older than its header


def segments(tags: dict[str, Any]) -> list[int]:
    """The numbers of the record tags among ``tags``, in order; whoever wrote ``cockpit/records/what`` is ignored."""
    numbers = (tag.removeprefix(RECORDS) for tag in tags if tag.startswith(RECORDS))
    return sorted(int(number) for number in numbers if number.isascii() and number.isdigit() and len(number) == 6)


# Decoding holds the interpreter: three first requests side by side would all be answered when the last one is done. One
# after the other, the first picture is there in a third of the time; meanwhile the data server gets the next run ready.
_DECODING = threading.Lock()


class Wanted(NamedTuple):
    """Which part of a run a page asks for: records ``since`` to ``until``, columns, and how finely."""

    since: int = 0
    until: int | None = None
    names: list[str] | None = None
    layers: bool = True
    max_points: int | None = None


class FedRun(RunData):
    """A run whose records arrive in parts; ``announced`` is how many TensorBoard has, decoded or not."""

    def __init__(self) -> None:
        super().__init__()
        self.announced = 0

    @property
    def expected(self) -> int:
        return max(super().expected, self.announced)

    def hear(self, wall_time: float) -> None:
        """A sign of life that has not been decoded yet: the run is not silent."""
        self._last_event = max(self._last_event, wall_time)


class Follower:
    """Keeps ``data`` up to date. The provider can only give a whole tag, so all but the newest are read once."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self.data = FedRun()
        self._segment = -1  # the newest record tag that was read, -1 = none
        self._newest = (-1, 0.0)  # its last event step and wall time when it was read
        self._headers: list[tuple[float, bytes]] = []  # not yet fed, oldest first
        self._header_version: Any = None
        self._header_time = -math.inf
        self._born = -math.inf  # records before belong to a run that this one replaced
        self._heavy: dict[str, tuple[Any, int]] = {}  # tag: (version, last step that was fed)

    # ---- what the routes ask ----

    def encode_batch(self, asker: Asker, wanted: Wanted) -> tuple[bytes, int]:
        """The bytes, and the record to go on from."""
        since, until, names, layers, max_points = wanted
        with self.lock:
            if (
                until is None or until > self.data.table.next_seq
            ):  # a stretch that is decoded needs no look at the files
                self._refresh(asker)
            only = None if layers else ()
            with _DECODING:
                content = encode_batch(
                    self.data, since, run=self.run, names=names, layers=only, max_points=max_points, until=until
                )
            known = self.data.table.next_seq
            return content, known if until is None else min(until, known)

    def read_histogram(self, asker: Asker, quantity: str, step: int, layer: str) -> bytes:
        with self.lock:
            if step not in self.data.histogram_steps(quantity):
                self._refresh(asker)
            self._asker = asker
            try:
                payload = self.data.histogram_bytes(quantity, step, layer or None)
                check_shown(payload)  # nothing is inflated for one that is too large to be drawn
                wire.decode_histogram(payload)  # a page would ask for a damaged one again and again
                return payload
            except KeyError as error:
                raise errors.NotFoundError(error.args[0][:500]) from None
            except ValueError as error:
                raise errors.NotFoundError(f"this histogram is damaged or too large: {error}"[:500]) from None

    # ---- reading ----

    def _refresh(self, asker: Asker) -> None:
        deadline = time.monotonic() + PATIENCE
        tags = self._list(asker)
        if self._lost_records(tags) or self._read_headers(asker, tags):
            self._forget()
            tags = self._list(asker)
            self._read_headers(asker, tags)
        for segment in segments(tags):
            read = segment >= self._segment and self._read_segment(asker, segment, tags[records_tag(segment)])
            if read and time.monotonic() > deadline:
                return
        self._feed_headers(float("inf"))
        self._read_heavy(asker)

    def _list(self, asker: Asker) -> dict[str, Any]:
        """All tags at first; later only those that can have changed, because listing a tag may mean walking it."""
        some = None
        if self._segment >= 0:
            some = [HEADER, records_tag(self._segment), records_tag(self._segment + 1)]
        tags = asker.list_tensors([self.run], some).get(self.run, {})
        if some is not None and some[-1] in tags:
            tags = asker.list_tensors([self.run], None).get(self.run, {})
        if not tags:
            raise errors.NotFoundError("no such run, or none that Cockpit wrote")
        known = segments(tags)
        if known:
            last = tags[records_tag(known[-1])]
            self.data.announced = max(self.data.announced, count_records(last))
            self.data.hear(float(last.max_wall_time))
        elif HEADER in tags:  # before the first record, the only sign of life
            self.data.hear(float(tags[HEADER].max_wall_time))
        return tags

    def _lost_records(self, tags: dict[str, Any]) -> bool:
        current = tags.get(records_tag(self._segment))
        return self._segment >= 0 and (current is None or current.max_step < self._newest[0])

    def _read_headers(self, asker: Asker, tags: dict[str, Any]) -> bool:
        """Queue the headers that are new; True if they speak of another run than the one that is known."""
        version = _version(tags.get(HEADER))
        if version is None or version == self._header_version:
            return False
        headers = sorted((wall_time, payload) for _, wall_time, payload in asker.read_tensor(self.run, HEADER))
        ids = [(wall_time, _read_id(payload)) for wall_time, payload in headers]
        newest = next((run_id for _, run_id in reversed(ids) if run_id), "")
        if self.data.header.run_id not in ("", newest):
            return True
        # The Python backend keeps what it read from files that were deleted since.
        other = max((wall_time for wall_time, run_id in ids if run_id not in ("", newest)), default=-math.inf)
        own = min((wall_time for wall_time, run_id in ids if run_id == newest and wall_time > other), default=0.0)
        self._born = own - SLACK if other > -math.inf else -math.inf
        self._headers += [x for x in headers if x[0] > max(self._header_time, other)]
        self._header_version, self._header_time = version, headers[-1][0] if headers else -math.inf
        return False

    def _read_segment(self, asker: Asker, segment: int, series: Any) -> bool:
        """False if nothing in it is new."""
        newest = (int(series.max_step), float(series.max_wall_time))
        if segment == self._segment and newest == self._newest:
            return False
        data = asker.read_tensor(self.run, records_tag(segment))
        with _DECODING:
            self._feed(sorted(data))
        self._segment, self._newest = segment, newest
        return True

    def _feed(self, data: list[Datum]) -> None:
        payloads: list[bytes] = []
        for _, wall_time, payload in data:
            if self._headers and (self.data.table.header is None or self._headers[0][0] <= wall_time):
                self.data.feed_records(payloads)
                payloads = []
                self._feed_headers(wall_time)
            if wall_time > self._born:
                payloads.append(payload)
        self.data.feed_records(payloads)

    def _feed_headers(self, until: float) -> None:
        """A header counts from its own time on: layer vectors of earlier records fit the header before."""
        while self._headers and (self.data.table.header is None or self._headers[0][0] <= until):
            self.data.feed_header(self._headers.pop(0)[1])

    def _read_heavy(self, asker: Asker) -> None:
        blobs = asker.list_blobs([self.run]).get(self.run, {})
        described = [(_describe(series.plugin_content, tag), tag) for tag, series in blobs.items()]
        for (generation, quantity), tag in sorted(described):
            version, last = self._heavy.get(tag, (None, -1))
            if version == _version(blobs[tag]):
                continue
            for step, keys in sorted(asker.read_blob_keys(self.run, tag).items()):
                if step > last and not self._is_replaced(step, generation):
                    self.data.feed_heavy(quantity, step, partial(self._fetch, keys), generation)
                    last = step
            self._heavy[tag] = (_version(blobs[tag]), last)

    def _is_replaced(self, step: int, generation: int) -> bool:
        return any(step >= drop.step and generation < drop.generation for drop in self.data.table.drops)

    def _fetch(self, keys: tuple[str, ...], index: int) -> bytes:
        if index >= len(keys):
            return b""
        try:
            return self._asker.read_blob(keys[index])
        except errors.InvalidArgumentError:  # the data server cannot parse its own keys then
            raise errors.NotFoundError(
                "TensorBoard's data server cannot fetch histograms of a run whose name holds quotes, backslashes or "
                "control characters. Rename the run, or start TensorBoard with --load_fast=false."
            ) from None


def count_records(series: Any) -> int:
    """How many there must be if the last has this number; TensorBoard's steps have 64 bits, numbers of records 32."""
    return min(max(0, int(series.max_step) + 1), UINT32_MAX)


def _version(series: Any) -> tuple[int, float] | None:
    return None if series is None else (int(series.max_step), float(series.max_wall_time))


def _describe(content: bytes, tag: str) -> tuple[int, str]:
    try:
        _, generation, quantity = wire.decode_series(content)
        return generation, quantity or tag.rpartition("/")[2]
    except ValueError:
        return 0, tag.rpartition("/")[2]


def _read_id(payload: bytes) -> str:
    try:
        return wire.decode_header(payload).run_id
    except ValueError:
        return ""

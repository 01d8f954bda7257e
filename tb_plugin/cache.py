"""All runs of a TensorBoard: listed cheaply, and decoded only when somebody looks at them."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from tensorboard import errors

from cockpit_core.events.data import QUIET
from cockpit_core.events.words import plain
from cockpit_core.schema import wire
from cockpit_core.schema.tags import HEADER, records_tag
from tb_plugin.follower import Follower, Wanted, count_records, segments
from tb_plugin.provider import Asker

# How long a listing may spend on finding out how runs ended; those it does not reach have the state "" until the
# next listing. The Python backend takes 60 ms for each.
PATIENCE = 0.3
AT_ONCE = 8


@dataclass
class Entry:
    """What the list of runs shows about one, and from which records that is known."""

    run_id: str = ""
    created: float = 0.0
    header: Any = None  # version of the header tag
    segment: int = 0
    seq: int = 0
    wall_time: float = 0.0
    ended: str = ""
    looked: int = -1  # the seq for which `ended` is known

    def state(self) -> str:
        if not self.seq:
            return "waiting"
        if self.looked != self.seq:
            return ""
        if self.ended:
            return self.ended
        pace = (self.wall_time - self.created) / self.seq
        return "crashed" if time.time() - self.wall_time > max(QUIET, 20 * pace) else "running"


class Cache:
    """Shared by all requests; ``(experiment, run)`` is the key, because a hosted TensorBoard serves several."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._followers: dict[tuple[str, str], Follower] = {}
        self._entries: dict[str, dict[str, Entry]] = defaultdict(dict)

    def encode_batch(self, asker: Asker, run: str, wanted: Wanted) -> tuple[bytes, int]:
        return self._follow(asker, run).encode_batch(asker, wanted)

    def read_histogram(self, asker: Asker, run: str, quantity: str, step: int, layer: str) -> bytes:
        return self._follow(asker, run).read_histogram(asker, quantity, step, layer)

    def _follow(self, asker: Asker, run: str) -> Follower:
        """The follower of a run that exists: a request for one that does not must not make memory grow."""
        key = (asker.experiment, run)
        with self._lock:
            follower = self._followers.get(key)
        if follower is not None:
            return follower
        if not asker.list_tensors([run], [HEADER, records_tag(0)]):
            raise errors.NotFoundError("no such run, or none that Cockpit wrote")
        with self._lock:
            return self._followers.setdefault(key, Follower(run))

    # ---- the list ----

    def list_runs(self, asker: Asker) -> list[dict[str, Any]]:
        """Run, id, number of records and state of every run, in TensorBoard's order."""
        with self._lock:
            entries = self._entries[asker.experiment]
            listed = asker.list_tensors(None, self._interesting_tags(entries))
            self._drop_gone(asker.experiment, listed)
            for run, tags in listed.items():
                _note_records(entries.setdefault(run, Entry()), tags)
            self._read_headers(asker, entries, listed)
            self._read_ends(asker, entries)
            return [
                {"run": run, "run_id": entry.run_id, "seq": entry.seq, "state": entry.state()}
                for run, entry in ((run, entries[run]) for run in asker.list_runs() if run in entries)
            ]

    def _interesting_tags(self, entries: dict[str, Entry]) -> set[str] | None:
        """Everything at first; later the tags that grow. Listing a tag may mean walking through it."""
        if not entries:
            return None
        newest = {entry.segment for entry in entries.values()}
        return {HEADER} | {records_tag(k) for segment in newest for k in (segment, segment + 1)}

    def _drop_gone(self, experiment: str, listed: dict[str, Any]) -> None:
        for run in set(self._entries[experiment]) - set(listed):
            del self._entries[experiment][run]
            self._followers.pop((experiment, run), None)

    def _read_headers(self, asker: Asker, entries: dict[str, Entry], listed: dict[str, dict[str, Any]]) -> None:
        versions = {run: tags[HEADER].max_wall_time for run, tags in listed.items() if HEADER in tags}
        news = [run for run, version in versions.items() if entries[run].header != version]
        if not news:
            return
        for run, by_tag in asker.read_newest(news, [HEADER], 1).items():
            entry = entries[run]
            entry.header = versions[run]
            for _, _, payload in by_tag.get(HEADER, []):
                try:
                    header = wire.decode_header(payload)
                    entry.run_id, entry.created = header.run_id, header.created
                except ValueError:
                    continue  # the run is listed without an id, and its page counts what is broken

    def _read_ends(self, asker: Asker, entries: dict[str, Entry]) -> None:
        deadline = time.monotonic() + PATIENCE
        unknown = defaultdict(list)
        for run, entry in entries.items():
            if entry.looked != entry.seq:
                unknown[entry.segment].append(run)
        for segment, runs in unknown.items():
            tag = records_tag(segment)
            for first in range(0, len(runs), AT_ONCE):
                if time.monotonic() > deadline:
                    return
                chosen = runs[first : first + AT_ONCE]
                answer = asker.read_newest(chosen, [tag], 1)
                for run in chosen:
                    _note_end(entries[run], answer.get(run, {}).get(tag, []))


def _note_records(entry: Entry, tags: dict[str, Any]) -> None:
    known = segments(tags)
    if known:
        series = tags[records_tag(known[-1])]
        entry.segment, entry.seq, entry.wall_time = known[-1], count_records(series), float(series.max_wall_time)


def _note_end(entry: Entry, newest: list[tuple[int, float, bytes]]) -> None:
    entry.looked, entry.ended = entry.seq, ""
    for _, _, payload in newest:
        try:
            record = wire.decode_record(payload)
        except ValueError:
            continue  # how it ended is not known; the page counts it as broken
        if record.kind == "end":
            entry.ended = plain(record.status) or "finished"

"""Where a widget's runs come from: a ``Run`` of this process, or a directory that anybody writes.

Both end in the same ``RunData``; they differ in who says that something is new. A run calls back after each record, on
the training thread. A directory is polled by one daemon thread, which holds the widget only weakly.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cockpit_core.events.data import RunData, get_values
from cockpit_core.events.table import KINDS, StoredRows
from cockpit_core.events.writer import Written
from cockpit_core.report.show import find_runs
from cockpit_core.report.terminal import clean
from cockpit_widget.fitting import encode_stretch, encode_within, split
from cockpit_widget.throttle import Throttle

ENDINGS = frozenset({"finished", "failed", "stopped", "crashed"})
POLL = 0.5  # seconds between two looks at a directory
SHOWN_RATE_OVER = 50  # records
MOST_RUNS = 10  # of a folder; more in one picture cannot be told apart


class Source:
    """One run as the widget sees it. ``cursor`` is the first record that was not sent, ``end`` the first unknown."""

    tailed = False
    can_stop = False

    def __init__(self, key: str, path: str) -> None:
        self.key, self.path = key, path
        self.data: RunData | None = None
        self.cursor = 0
        self.announced = self.tried = False  # the browser knows that the run ended; or was to be told
        self._run_id = ""

    @property
    def end(self) -> int:
        return self.data.expected if self.data is not None else 0

    @property
    def state(self) -> str:
        return self.data.status if self.data is not None else "waiting"

    @property
    def ended(self) -> bool:
        return self.state in ENDINGS

    def refresh(self) -> None:
        """Read what is new. A directory whose run was replaced by another one is shown from its beginning."""
        if self.data is None:
            return
        self.read()
        run_id = self.data.header.run_id
        if (run_id != self._run_id and self._run_id) or self.end < self.cursor:
            self.cursor, self.announced, self.tried = 0, False, False
        self._run_id = run_id

    def read(self) -> None:
        if self.data is not None:
            self.data.refresh()

    @property
    def stop_requested(self) -> bool:
        return False

    def subscribe(self, callback: Callable[[], object], throttle: Throttle) -> Callable[[], None] | None:
        """Be called back when a message is due and there is something new. Returns how to end it; None if that never
        happens."""
        return None

    def request_stop(self) -> None:
        raise ValueError("This run belongs to another process; stop it there.")

    def encode(self, since: int, limit: int, histograms: int) -> list[bytes]:
        if self.data is None:
            return []
        return encode_within(self.data, since, run=self.key, limit=limit, histograms=histograms)

    def encode_backlog(self, limit: int, most: int) -> Iterator[tuple[int, bytes]]:
        """What is too much for one message, in pieces, each with the record after its last; not the last piece."""
        if self.data is not None:
            since = self.cursor
            for until in split(self.data, since, limit, most):
                yield until, encode_stretch(self.data, self.key, since, until, None, limit)
                since = until

    def describe(self, number: int) -> dict[str, Any]:
        return {"key": self.key, "name": self.key, "path": self.path, "color_index": number}

    def status(self) -> dict[str, Any]:
        data = self.data
        status: dict[str, Any] = {"state": self.state, "can_stop": self.can_stop, "stop_requested": self.stop_requested}
        if data is None:
            nothing = {"records": 0, "expected": 0, "broken": 0, "elapsed": 0.0, "steps_per_second": None}
            return {**status, "error": "", **nothing}
        last = data.rows_since(max(0, self.end - SHOWN_RATE_OVER))
        return {
            **status,
            "error": data.error,
            "records": data.received,
            "expected": data.expected,
            "broken": data.broken,
            "elapsed": float(last.time[-1]) if len(last.time) and np.isfinite(last.time[-1]) else 0.0,
            "steps_per_second": measure_rate(last),
        }

    def summary(self) -> str:
        """One line for places that can show nothing else, a terminal among them."""
        if self.data is None:
            return clean(f"{self.key}: waiting for the first record in {self.path}")
        steps, losses = get_values(self.data, "Loss")
        last = f", step {int(steps[-1]):,}, loss {float(losses[-1]):.4g}" if len(steps) else ""
        return clean(f"{self.key}: {self.state}{last}")


def measure_rate(rows: StoredRows) -> float | None:
    """Steps per second between the first and the last of these steps. What was before the first (compiling, imports) and
    what was logged between them are not steps."""
    taken = np.flatnonzero(rows.kind == KINDS.index("step"))
    if taken.size < 2:
        return None
    first, last = taken[0], taken[-1]
    seconds, steps = float(rows.time[last] - rows.time[first]), int(rows.step[last]) - int(rows.step[first])
    return steps / seconds if 0 < seconds < np.inf and steps > 0 else None


class RunSource(Source):
    """A run of this process. It tells us itself when there is something new, so there is no thread, and what it is, so
    that the file is read only once: reading back every record would cost a fast loop several percent."""

    can_stop = True

    def __init__(self, run: Any, key: str) -> None:
        super().__init__(key, str(run.logdir))
        self._run = run
        self._written: deque[bytes | Written] = deque()
        self._listening = False
        self.data = RunData(run.logdir)  # our own: only we read it, one thread at a time

    def read(self) -> None:
        assert self.data is not None
        if not self._listening:
            super().read()
            return
        fresh = [self._written.popleft() for _ in range(len(self._written))]  # another thread may be appending
        self.data.feed_written(self._run._writer.path, fresh)

    @property
    def state(self) -> str:
        status = str(self._run.status)
        if status in ENDINGS:
            return status
        return "running" if self.end > 1 else "waiting"

    @property
    def ended(self) -> bool:
        return self._run.status in ENDINGS

    @property
    def stop_requested(self) -> bool:
        return bool(self._run.should_stop)

    def subscribe(self, callback: Callable[[], object], throttle: Throttle) -> Callable[[], None] | None:
        ends: list[Callable[[], None]] = []
        listen = getattr(getattr(self._run, "_writer", None), "listen", None)
        if listen is not None:  # on other ranks of a distributed run nothing is written
            ends.append(listen(self._written.append))
            super().read()  # what was written before that; where the two overlap, nothing is taken twice
            self._listening = True
        run, clock = self._run, throttle.clock

        def after_record() -> None:
            """Called at every training step, when Python code is never in the cache: each call that is avoided here
            saves a microsecond or more."""
            if clock() >= throttle.next or run.status in ENDINGS:
                callback()

        ends.append(run.subscribe(after_record))

        def unsubscribe() -> None:
            self._listening = False
            for end in ends:
                end()

        return unsubscribe

    def request_stop(self) -> None:
        self._run.request_stop()


class DirectorySource(Source):
    """A log directory, which need not exist yet."""

    tailed = True

    def __init__(self, path: str | os.PathLike[str], key: str) -> None:
        super().__init__(key, os.fspath(path))
        self._state, self._looked = "waiting", -1.0
        self.refresh()

    def refresh(self) -> None:
        if self.data is None:
            try:
                self.data = RunData(self.path)
            except FileNotFoundError:
                return  # nobody has begun to write yet
        super().refresh()
        self._looked = -1.0

    @property
    def state(self) -> str:
        """Asking a long run for its state is not free: once per refresh."""
        if self._looked < 0 and self.data is not None:
            self._state, self._looked = self.data.status, time.monotonic()
        return self._state


class DataSource(Source):
    """What ``cockpit_core.load`` returned: shown as it is, refreshed when a page loads."""

    def __init__(self, data: RunData, key: str) -> None:
        super().__init__(key, str(data.path or ""))
        self.data = data


def make_sources(runs: Any) -> list[Source]:
    """One source per run; keys are the shortest ends of their paths that differ."""
    given = list(runs) if isinstance(runs, (list, tuple)) else [runs]
    items = [run for item in given for run in _expand(item)]
    if not items:
        raise ValueError("There is nothing to show: pass a run, a log directory, or a list of them.")
    keys = name_paths([_path_of(item) for item in items])
    return [_make_source(item, key) for item, key in zip(items, keys, strict=True)]


def _expand(item: Any) -> list[Any]:
    """A folder of runs stands for the runs in it, the last ones by name; a folder with none is waited for."""
    return _runs_in(item)[-MOST_RUNS:] or [item]


def _runs_in(item: Any) -> list[Path]:
    """Of a folder that is no run itself."""
    if not isinstance(item, (str, os.PathLike)) or not Path(item).is_dir():
        return []
    runs = list(find_runs(Path(item)))
    return [] if Path(item) in runs else runs


def say_left_out(runs: Any) -> str:
    """Which folders hold more runs than are shown: "the last 10 of 12 runs in sweep"."""
    given = list(runs) if isinstance(runs, (list, tuple)) else [runs]
    counts = {Path(item).name: len(_runs_in(item)) for item in given if isinstance(item, (str, os.PathLike))}
    return ", ".join(f"the last {MOST_RUNS} of {n} runs in {name}" for name, n in counts.items() if n > MOST_RUNS)


def _make_source(item: Any, key: str) -> Source:
    if isinstance(item, RunData):
        return DataSource(item, key)
    return DirectorySource(item, key) if isinstance(item, (str, os.PathLike)) else RunSource(item, key)


def _path_of(item: Any) -> Path:
    if isinstance(item, RunData):
        return Path(item.path or "run")
    if isinstance(item, (str, os.PathLike)):
        return Path(item)
    if hasattr(item, "subscribe") and hasattr(item, "data") and hasattr(item, "logdir"):
        return Path(item.logdir)
    raise TypeError(
        f"CockpitWidget shows runs and log directories, not {type(item).__name__}. "
        "Pass what cockpit_core.track returned, a path, or a list of those."
    )


def name_paths(paths: Sequence[Path]) -> list[str]:
    whole = [path.resolve() for path in paths]
    for length in range(1, max(len(path.parts) for path in whole) + 1):
        names = ["/".join(path.parts[-length:]) for path in whole]
        if len(set(names)) == len(names):
            return names
    return [f"{path.name} ({number})" for number, path in enumerate(whole, 1)]


class Tail(threading.Thread):
    """Calls ``poll`` until it says that there is nothing more to come, or until stopped. It keeps nothing alive:
    ``poll`` holds the widget weakly, and the thread is a daemon."""

    def __init__(self, poll: Callable[[], bool], seconds: float = POLL) -> None:
        super().__init__(name="cockpit-tail", daemon=True)
        self._poll, self._seconds = poll, seconds
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(self._seconds):
            if not self._poll():
                return

    def stop(self) -> None:
        """Does not wait: garbage collection may call this from the thread itself."""
        self._ended.set()

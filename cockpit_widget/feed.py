"""What to send: deltas that carry everything since the last one that got through, and keyframes that carry all.

Coalescing needs no queue: a run's log is append-only, so "what was skipped" is whatever lies behind the cursor. The
cursor moves only after a message was handed over; the next message makes up for a failed or postponed one.
"""

from __future__ import annotations

import contextlib
import gc
import struct
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from cockpit_core.report.terminal import clean
from cockpit_widget.fitting import HISTORY, MOST_PIECES
from cockpit_widget.sources import Source
from cockpit_widget.throttle import Clock, KeyframeSchedule, Throttle


def join_frames(batches: Iterable[Sequence[bytes]]) -> bytes:
    """Each batch of each run after its length, uint32 little endian."""
    return b"".join(struct.pack("<I", len(batch)) + batch for of_run in batches for batch in of_run if batch)


def split_frames(frames: bytes) -> list[bytes]:
    batches, offset = [], 0
    while offset < len(frames):
        (size,) = struct.unpack_from("<I", frames, offset)
        batches.append(frames[offset + 4 : offset + 4 + size])
        offset += 4 + size
    return batches


@contextlib.contextmanager
def collecting_later() -> Iterator[None]:
    """Garbage is collected at some allocation, ours or training's. All of a notebook's objects take a quarter of a second,
    which would count as ours, and the next message would wait for many seconds to make up for it."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@dataclass(frozen=True)
class Message:
    frames: bytes
    status: dict[str, Any]
    keyframe: bool = False
    extra: dict[str, Any] = field(default_factory=dict)


Deliver = Callable[[Message], None]


class Feed:
    """The stream of one widget. ``tick`` may be called from any thread, after every record; it never raises and never
    waits for another thread (unless forced, and then not for long)."""

    def __init__(
        self,
        sources: Sequence[Source],
        throttle: Throttle,
        *,
        clock: Clock = time.monotonic,
        cpu: Clock = time.thread_time,
    ) -> None:
        self.sources, self.throttle = list(sources), throttle
        self.errors, self.last_error = 0, ""
        self.lock = threading.Lock()
        self._clock, self._cpu = clock, cpu
        self._keyframes = KeyframeSchedule(throttle.limits, clock)
        self._next_heavy = clock()
        self._in_keyframe: list[int] = []
        self._ends: list[int] = []
        self._ending = False

    @property
    def ended(self) -> bool:
        """Every run has ended and the browser was told."""
        return all(source.ended and source.announced for source in self.sources)

    def take_ending(self) -> bool:
        """Whether a run ended since the last call."""
        ending, self._ending = self._ending, False
        return ending

    def tick(self, deliver: Deliver, force: bool = False) -> bool:
        """Whether there was anything to do: mostly not, and then this must cost next to nothing."""
        if not (force or self.throttle.due() or self._is_ending()):
            return False
        if not (self.lock.acquire(timeout=2.0) if force else self.lock.acquire(blocking=False)):
            return False  # another thread is sending; what is new goes with a later message
        try:
            with collecting_later():
                self._send(deliver, force)
        finally:
            self.lock.release()
        return True

    def _send(self, deliver: Deliver, force: bool) -> None:
        began, worked, known = self._clock(), self._cpu(), self._count()
        self.guard(self.refresh)
        if any(source.tailed for source in self.sources):  # a thread of ours read somebody's log:
            began, worked = self._clock(), self._cpu()  # training did not wait for that
        size = self.guard(lambda: self._update(deliver, force)) or 0
        self.throttle.sent(size, self._clock() - began, self._cpu() - worked, self._count() - known)

    def _count(self) -> int:
        """Records that training has handed to us."""
        return sum(source.end for source in self.sources if not source.tailed)

    def _is_ending(self) -> bool:
        for source in self.sources:  # noqa: SIM110 - this runs at every step, and a generator costs as much again
            if not source.tried and source.ended:
                return True
        return False

    @contextlib.contextmanager
    def exclusively(self, seconds: float) -> Iterator[None]:
        """While no other thread reads or sends."""
        if not self.lock.acquire(timeout=seconds):
            raise TimeoutError("The kernel is busy; try again.")
        try:
            yield
        finally:
            self.lock.release()

    def guard(self, work: Callable[[], Any]) -> Any:
        """Whatever goes wrong while showing must not reach training."""
        try:
            return work()
        except Exception as error:
            self.note(error)
            return None

    def note(self, error: Exception) -> None:
        """Count it, say it once, go on."""
        self.errors += 1
        self.last_error = clean(f"{type(error).__name__}: {error}")
        if self.errors > 1:
            return
        try:
            text = f"The cockpit could not be updated ({self.last_error}). Training and the log go on."
            warnings.warn(text, stacklevel=2)
        except Warning:
            pass  # the user turned warnings into errors; still not training's problem

    def _update(self, deliver: Deliver, force: bool) -> int:
        ending = [source for source in self.sources if source.ended and not source.announced]
        for source in ending:
            source.tried = True  # at once; if that fails, again when the pace allows it
        size = self._send_delta(deliver, bool(ending))
        advanced = [source.cursor for source in self.sources] != self._in_keyframe
        if advanced and (ending or force or self._keyframes.due()):
            message = self._make_keyframe(HISTORY if ending or force else 1)
            deliver(message)
            self._keyframes.done()
            self._in_keyframe = [source.cursor for source in self.sources]
            size += len(message.frames)
        for source in ending:
            source.announced = self._ending = True
        return size

    def _send_delta(self, deliver: Deliver, ending: bool) -> int:
        heavy = ending or self._clock() >= self._next_heavy
        ends = [source.end for source in self.sources]
        fresh = [source for source, end in zip(self.sources, ends, strict=True) if end > source.cursor]
        if not fresh:
            return 0
        limit, most = (self.throttle.limits.message_bytes, MOST_PIECES) if ending else self.throttle.room(MOST_PIECES)
        limit //= len(fresh)
        size = sum(self._send_backlog(deliver, source, limit, most) for source in fresh)
        batches = [source.encode(since=source.cursor, limit=limit, histograms=int(heavy)) for source in fresh]
        message = Message(join_frames(batches), self.status())
        deliver(message)
        for source, end in zip(self.sources, ends, strict=True):
            source.cursor = end
        if heavy:
            self._next_heavy = self._clock() + self.throttle.limits.heavy_gap
        return size + len(message.frames)

    def _send_backlog(self, deliver: Deliver, source: Source, limit: int, most: int) -> int:
        size = 0
        for until, batch in source.encode_backlog(limit, most):
            message = Message(join_frames([[batch]]), self.status())
            deliver(message)
            source.cursor, size = until, size + len(message.frames)
        return size

    def _make_keyframe(self, histograms: int) -> Message:
        limits = self.throttle.limits
        limit = limits.keyframe_bytes if histograms == HISTORY else min(limits.interim_bytes, limits.keyframe_bytes)
        limit //= max(1, len(self.sources))
        frames = join_frames(source.encode(since=0, limit=limit, histograms=histograms) for source in self.sources)
        return Message(frames, self.status(), keyframe=True)

    def keyframe(self) -> Message | None:
        """Everything, as of now, for a page that loads; None if it cannot be had (then the last one must do)."""
        try:
            with self.exclusively(2.0):
                self.refresh()
                self._ends = [source.end for source in self.sources]
                return self._make_keyframe(HISTORY)
        except Exception as error:
            self.note(error)
            return None

    def begin(self) -> None:
        """The page was opened with a keyframe: only what came after it is news."""
        if self._ends:
            self._in_keyframe = self._ends
            for source, end in zip(self.sources, self._ends, strict=True):
                source.cursor = end
                source.announced = source.tried = source.ended

    def refresh(self) -> None:
        for source in self.sources:
            source.refresh()

    def status(self) -> dict[str, Any]:
        return {
            "runs": {source.key: source.status() for source in self.sources},
            "sent": time.time(),
            "interval": self.throttle.interval(),
            "errors": self.errors,
            "last_error": self.last_error,
        }

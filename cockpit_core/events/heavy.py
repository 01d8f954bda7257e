"""Which histograms a run has, and where. They stay on disk until they are asked for."""

from __future__ import annotations

import bisect
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from cockpit_core.events.reader import read_one
from cockpit_core.events.table import Drop
from cockpit_core.schema import wire
from cockpit_core.schema.limits import MAX_INFLATED, MAX_SHOWN, UINT32_MAX

INFLATED = 64  # how much smaller a histogram may get by compression before its size in memory counts

Fetch = Callable[[int], bytes]  # blob number -> bytes of one histogram, b"" = none


class Heavy(NamedTuple):
    step: int
    generation: int
    fetch: Fetch


class HeavyIndex:
    """Histograms by quantity, each list in order of its steps."""

    def __init__(self) -> None:
        self._entries: dict[str, list[Heavy]] = {}

    @property
    def names(self) -> list[str]:
        return [name for name, entries in self._entries.items() if entries]

    def steps(self, name: str) -> list[int]:
        return [entry.step for entry in self._entries.get(name, [])]

    def add(self, name: str, step: int, generation: int, fetch: Fetch) -> None:
        """Raises ValueError for a step that no run has: TensorBoard's steps have 64 bits and may be negative."""
        if not 0 <= step <= UINT32_MAX:
            raise ValueError(f"{name} at step {step}")
        entries = self._entries.setdefault(name, [])
        while entries and entries[-1].step >= step:  # a resumed run went back: the later one counts
            entries.pop()
        entries.append(Heavy(step, generation, fetch))

    def drop(self, drop: Drop) -> None:
        """Forget what earlier generations know about that step and later ones."""
        for entries in self._entries.values():
            entries[:] = [x for x in entries if x.step < drop.step or x.generation >= drop.generation]

    def find(self, name: str, step: int) -> Heavy | None:
        """The histogram of a step (-1: the last one); None if there is none."""
        entries = self._entries.get(name, [])
        place = len(entries) - 1 if step == -1 else bisect.bisect_left(entries, step, key=lambda entry: entry.step)
        heavy = entries[place] if 0 <= place < len(entries) else None
        return heavy if heavy is not None and step in (-1, heavy.step) else None


def check_shown(blob: bytes) -> int:
    """How many bytes a histogram takes in a page; raises ValueError if it is damaged, or larger than a page can draw."""
    size = wire.measure_histogram(blob)
    if size > MAX_SHOWN:
        raise ValueError(f"a histogram of {size} bytes is too large to be shown; {MAX_SHOWN} are the most")
    return size


class Room:
    """What a message may still hold: bytes as sent, and bytes once the page has inflated them."""

    def __init__(self, bytes_left: int) -> None:
        self.left, self._inflated = bytes_left, MAX_INFLATED

    def take(self, blob: bytes) -> bool:
        """Whether it fits. Where compression made it very small, its size in the page counts instead.

        Raises ValueError, and takes nothing, where it cannot be shown.
        """
        size = check_shown(blob)
        weight = max(len(blob), size // INFLATED)
        fits = weight <= self.left and size <= self._inflated
        self.left -= weight
        self._inflated -= size
        return fits

    @property
    def is_full(self) -> bool:
        return self.left <= 0 or self._inflated <= 0


def make_fetch(path: Path, offset: int, end: int, tag: str) -> Fetch:
    """How to read the blobs of one event again, given where it stands."""

    count: int | None = None  # the number of blobs: mostly far fewer than the header has layers

    def fetch(index: int) -> bytes:
        nonlocal count
        if count is not None and index >= count:
            return b""
        values = [value for value in read_one(path, offset, end).values if value.tag == tag]
        if count is None:
            count = max((value.count_strings() for value in values), default=0)
        return next(filter(None, (value.pick_string(index) for value in values)), b"")

    return fetch

"""Layer-wise values of one name: memory in proportion to the values that came, whatever the headers claim."""

from __future__ import annotations

import bisect
from array import array
from collections.abc import Iterable, Iterator

import numpy as np


class Layout:
    """Which layers a header names, in its order, as numbers that all headers of a run share."""

    def __init__(self, layers: list[int]) -> None:
        self.layers = layers
        straight = layers == list(range(len(layers)))
        # If a name occurs twice, the last one counts.
        self._places = None if straight else {layer: place for place, layer in enumerate(layers)}

    @property
    def width(self) -> int:
        return len(self.layers)

    def find(self, layer: int) -> int | None:
        """The place of a layer in a vector; None if this header does not name it."""
        if self._places is not None:
            return self._places.get(layer)
        return layer if layer < len(self.layers) else None


class LayerColumn:
    """One value per layer and row, a matrix for each layout in which they came; mostly there is one."""

    def __init__(self) -> None:
        self._parts: list[_Part] = []

    def append(self, row: int, values: np.ndarray, absent: np.ndarray | None, layout: Layout) -> None:
        self._part(layout).append(row, values, absent)

    def extend(self, rows: np.ndarray, values: np.ndarray, absent: np.ndarray | None, layout: Layout) -> None:
        """Several rows at once; they may lie between those of this layout that are there."""
        self._part(layout).extend(rows, values, absent)

    def _part(self, layout: Layout) -> _Part:
        if not self._parts or self._parts[-1].layout is not layout:
            self._parts.append(_Part(layout))
        return self._parts[-1]

    def __bool__(self) -> bool:
        return any(part.rows for part in self._parts)

    def layers(self) -> list[int]:
        """Layers that may have a value, increasing."""
        if len(self._parts) == 1:
            return sorted(set(self._parts[0].layout.layers))
        return sorted({layer for part in self._parts for layer in part.layout.layers})

    def get(self, layer: int, first: int = 0, last: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Copies of rows and values of one layer, from row ``first`` on, before row ``last``."""
        parts = [(part, part.layout.find(layer)) for part in self._parts]
        pieces = [part.get(place, first, last) for part, place in parts if place is not None]
        if len(pieces) == 1:
            return pieces[0]
        if not pieces:
            return np.empty(0, np.uint32), np.empty(0)
        return np.concatenate([rows for rows, _ in pieces]), np.concatenate([values for _, values in pieces])

    def get_all(
        self, layers: Iterable[int], first: int, last: int | None
    ) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """These layers that have values, with the same as ``get`` of each."""
        if len(self._parts) == 1:  # mostly, and then all at once
            yield from self._parts[0].get_all(layers, first, last)
            return
        for layer in layers:
            rows, values = self.get(layer, first, last)
            if rows.size:
                yield layer, rows, values

    def keep(self, kept: np.ndarray, renumber: np.ndarray) -> None:
        for part in self._parts:
            part.keep(kept, renumber)
        self._parts = [part for part in self._parts if part.rows]


class _Part:
    """A matrix ``[rows, layers]`` that doubles when it is full, of 32 bits until a value needs 64."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.rows: array[int] = array("I")
        self._values = np.full((1, layout.width), np.nan, dtype=np.float32)
        self._present = np.zeros((1, layout.width), dtype=bool)

    def append(self, row: int, values: np.ndarray, absent: np.ndarray | None) -> None:
        index = len(self.rows)
        self._fit(values.dtype)
        if index == len(self._values):
            self._grow(2 * index)
        self._values[index] = values
        self._present[index] = True if absent is None else ~absent
        self.rows.append(row)

    def extend(self, rows: np.ndarray, values: np.ndarray, absent: np.ndarray | None) -> None:
        start, end = len(self.rows), len(self.rows) + len(rows)
        self._fit(values.dtype)
        if end > len(self._values):
            self._grow(max(end, 2 * start))
        self._values[start:end] = values
        self._present[start:end] = True if absent is None else ~absent
        self.rows.frombytes(rows.astype(np.uint32).tobytes())
        if start and self.rows[start] < self.rows[start - 1]:
            first = bisect.bisect_left(self.rows, self.rows[start], 0, start)  # those before are in order
            tail = np.array(self.rows[first:], dtype=np.uint32)
            order = np.argsort(tail, kind="stable")
            self._values[first:end] = self._values[first:end][order]
            self._present[first:end] = self._present[first:end][order]
            self.rows[first:] = array("I", tail[order].tobytes())

    def _fit(self, dtype: np.dtype) -> None:
        if dtype.itemsize > self._values.itemsize:
            self._values = self._values.astype(np.float64)

    def _grow(self, height: int) -> None:
        old = len(self._values)
        values = np.full((height, self.layout.width), np.nan, dtype=self._values.dtype)
        present = np.zeros((height, self.layout.width), dtype=bool)
        values[:old], present[:old] = self._values, self._present
        self._values, self._present = values, present

    def get(self, place: int, first: int, last: int | None) -> tuple[np.ndarray, np.ndarray]:
        part = between(self.rows, first, last)
        mask = self._present[part, place]
        rows = np.frombuffer(self.rows, np.uint32)[part][mask] if self.rows else np.empty(0, np.uint32)
        return rows, self._values[part, place][mask].astype(np.float64)

    def get_all(
        self, layers: Iterable[int], first: int, last: int | None
    ) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        part = between(self.rows, first, last)
        rows = np.frombuffer(self.rows[part], np.uint32)  # the slice is a copy
        if not rows.size:
            return
        present = self._present[part]
        values = np.array(self._values[part].T, dtype=np.float64, order="C")  # [layers, rows]
        whole = bool(present.all())
        for layer in layers:
            place = self.layout.find(layer)
            if place is None:
                continue
            if whole:
                yield layer, rows, values[place]
            elif present[:, place].any():
                mask = present[:, place]
                yield layer, rows[mask], values[place][mask]

    def keep(self, kept: np.ndarray, renumber: np.ndarray) -> None:
        rows = np.array(self.rows, dtype=np.uint32)
        mask = kept[rows]
        count = int(mask.sum())
        self._values[:count], self._present[:count] = self._values[: rows.size][mask], self._present[: rows.size][mask]
        self._present[count:] = False
        self.rows = array("I", renumber[rows[mask]].tolist())


def between(rows: array[int], first: int, last: int | None) -> slice:
    """Where the values of rows ``first`` to ``last`` (exclusive) stand; ``rows`` is in order."""
    start = bisect.bisect_left(rows, first)
    return slice(start, len(rows) if last is None else bisect.bisect_left(rows, last, start))

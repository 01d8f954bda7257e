"""What the records of one run have in common, as bytes.

Most records of a run hold the same names in the same order; only the numbers differ. So their bytes differ only where
numbers stand. A ``Pattern`` is one record taken apart: which bytes are numbers, and which must be the same in another
record for it to be read by this pattern.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cockpit_core.schema import wire
from cockpit_core.schema.varint import read_varint

_VARINT, _FIXED64, _BYTES = 0, 1, 2
_RECORD, _SCALARS, _LAYER, _ARRAY, _ALPHA, _ESTIMATE, _COST = (
    wire.field_names(kind) for kind in ("Record", "Scalars", "LayerVector", "Array", "AlphaFit", "Estimate", "Cost")
)
_SMALL, _DOUBLES = ("seq", "step", "batch_size"), ("wall_time", "time", "epoch")
_SAME = {"kind": _VARINT, "generation": _VARINT, "missing": _BYTES, "triggered": _VARINT}
"""Must not differ between records that are read together: nothing in them is a number that changes."""
Span = tuple[int, int]


class UnusualError(ValueError):
    """This record is read the ordinary way: it holds something rare, or is damaged."""


class Pattern:
    """Where in the bytes of a record its numbers stand.

    ``care[i]`` has the bits of byte ``i`` that must not differ: all of a name or a length, the continuation bit of a
    small number, none of a double.
    """

    def __init__(self, payload: bytes) -> None:
        self.record = wire.decode_record(payload)  # whatever is wrong with the bytes shows here
        self.payload = np.frombuffer(payload, np.uint8)
        self.care = np.full(len(payload), 0xFF, np.uint8)
        self.small: dict[str, Span] = {}  # seq, step
        self.doubles: dict[str, int] = {}  # wall_time, time, epoch
        self.scalars: int | None = None  # first byte of the values
        self.layers: list[int] = []  # first byte of each vector
        self.alphas: list[tuple[Span | None, dict[str, int]]] = []  # of the step, of each number
        self.estimates: list[int | None] = []
        self.costs: list[int | None] = []
        self.top_samples: list[Span] = []
        self._seen: set[str] = set()
        self._data = payload
        for number, kind, start, end in _walk(payload, 0, len(payload)):
            self._take(number, kind, start, end)
        self._check()
        self.key = self.payload & self.care

    def fits(self, matrix: np.ndarray) -> np.ndarray:
        """Which rows of ``[records, bytes]`` are this record with other numbers."""
        return ((matrix & self.care) == self.key).all(axis=1)

    def _take(self, number: int, kind: int, start: int, end: int) -> None:
        name = _RECORD.get(number, "")
        repeated = {
            "layers": self._take_layer,
            "alphas": self._take_alpha,
            "estimates": self._take_estimate,
            "costs": self._take_cost,
        }
        if name in repeated and kind == _BYTES:
            repeated[name](start, end)
            return
        if name in self._seen and name != "missing":  # text only: the same in all that fit
            raise UnusualError
        self._seen.add(name)
        if name in _SMALL and kind == _VARINT:
            self.small[name] = self._free_small(start, end)
        elif name in _DOUBLES and kind == _FIXED64:
            self.doubles[name] = self._free(start, end)
        elif name == "scalars" and kind == _BYTES:
            span = self._free_field(start, end, _SCALARS, "values", _BYTES)
            if span is None or span[1] - span[0] != 8 * len(self.record.scalars):
                raise UnusualError  # a name twice: the last counts
            self.scalars = span[0]
        elif name == "top_samples" and kind == _BYTES:
            self.top_samples = [self._free_small(*span) for span in _walk_packed(self._data, start, end)]
        elif _SAME.get(name) != kind:
            raise UnusualError

    def _take_layer(self, start: int, end: int) -> None:
        array = [(a, b) for number, _, a, b in _walk(self._data, start, end) if _LAYER.get(number) == "values"]
        if len(array) != 1 or any(_ARRAY.get(number) == "codec" for number, _, _, _ in _walk(self._data, *array[0])):
            raise UnusualError  # more than one, or compressed
        span = self._free_field(*array[0], _ARRAY, "data", _BYTES)
        if span is None:
            raise UnusualError
        self.layers.append(span[0])

    def _take_alpha(self, start: int, end: int) -> None:
        step, numbers = None, {}
        for number, kind, a, b in _walk(self._data, start, end):
            name = _ALPHA.get(number, "")
            if name == "step" and kind == _VARINT and step is None:
                step = self._free_small(a, b)
            elif name in wire.ALPHA_DOUBLES and kind == _FIXED64 and name not in numbers:
                numbers[name] = self._free(a, b)
            elif (name, kind) != ("has_alpha", _VARINT):
                raise UnusualError
        if not numbers:
            raise UnusualError
        self.alphas.append((step, numbers))

    def _take_estimate(self, start: int, end: int) -> None:
        self.estimates.append(self._free_double(start, end, _ESTIMATE, "error"))

    def _take_cost(self, start: int, end: int) -> None:
        self.costs.append(self._free_double(start, end, _COST, "seconds"))

    def _free_double(self, start: int, end: int, names: dict[int, str], name: str) -> int | None:
        span = self._free_field(start, end, names, name, _FIXED64)
        return span[0] if span else None

    def _free_field(self, start: int, end: int, names: dict[int, str], name: str, kind: int) -> Span | None:
        """Where the numbers of one field of a message stand; None = absent, which means zero."""
        fields = [field for field in _walk(self._data, start, end) if names.get(field[0]) == name]
        if len(fields) > 1 or any(field[1] != kind for field in fields):
            raise UnusualError
        for _, _, a, b in fields:
            self._free(a, b)
            return a, b
        return None

    def _free(self, start: int, end: int) -> int:
        self.care[start:end] = 0
        return start

    def _free_small(self, start: int, end: int) -> Span:
        if end - start > 4:
            raise UnusualError
        self.care[start:end] = 0x80
        return start, end

    def _check(self) -> None:
        record = self.record
        if record.kind not in ("step", "log") or record.notices:
            raise UnusualError
        if any(name.startswith(("cost/", "error/")) for name in record.scalars):  # may stand for the same column
            raise UnusualError
        unequal = [
            len(self.layers) != len(record.layers),
            len(self.alphas) != len(record.alphas),
            len(self.estimates) != len(record.estimates),  # two of one name: the last counts
            len(self.costs) != len(record.costs),
            len(self.top_samples) != len(record.top_samples),
        ]
        if any(unequal):
            raise UnusualError


def read_small(matrix: np.ndarray, span: Span | None) -> np.ndarray:
    """A number of at most four bytes, seven bits in each, the lowest first; [records]."""
    value = np.zeros(len(matrix), np.uint32)
    for shift, position in enumerate(range(*span) if span else ()):
        value |= (matrix[:, position] & np.uint8(0x7F)).astype(np.uint32) << np.uint32(7 * shift)
    return value


def read_numbers(matrix: np.ndarray, start: int | None, count: int = 1, dtype: str = "<f8") -> np.ndarray:
    """[records, count]; a start of None stands for zeros, which protobuf leaves out."""
    if start is None:
        return np.zeros((len(matrix), count))
    size = np.dtype(dtype).itemsize * count
    return np.ascontiguousarray(matrix[:, start : start + size]).view(dtype)


def _walk(data: bytes, position: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Number, wire type, first and last byte (exclusive) of the value of each field."""
    while position < end:
        key, position = read_varint(data, position, end)
        kind = key & 7
        start = position
        if kind == _VARINT:
            position = read_varint(data, position, end)[1]
        elif kind == _FIXED64:
            position += 8
        elif kind == _BYTES:
            size, start = read_varint(data, position, end)
            position = start + size
        else:
            raise UnusualError
        if position > end:
            raise UnusualError
        yield key >> 3, kind, start, position


def _walk_packed(data: bytes, position: int, end: int) -> Iterator[Span]:
    while position < end:
        start = position
        position = read_varint(data, position, end)[1]
        yield start, position

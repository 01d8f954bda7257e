"""TensorBoard's Event and Summary messages, as far as Cockpit uses them, read and written by hand.

Importing TensorBoard's own generated code takes most of a second and may pull in TensorFlow; writing and reading a log
needs six small messages. The numbers are TensorBoard's (event.proto, summary.proto, tensor.proto).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

from cockpit_core.schema import tags
from cockpit_core.schema.varint import encode_varint, read_varint

PLUGIN = "cockpit"
CLASS_TENSOR = 2
CLASS_BLOB_SEQUENCE = 3

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MARKS = tuple(tag.encode() for tag in (tags.HEADER, tags.RECORDS, tags.HEAVY))
_DOUBLE = struct.Struct("<d")
_FLOAT = struct.Struct("<f")
_DT_STRING = 7
_FLOAT_MAX = 3.4028234663852886e38


def encode_bytes(number: int, value: bytes) -> bytes:
    return encode_varint(number << 3 | _BYTES) + encode_varint(len(value)) + value


def encode_integer(number: int, value: int) -> bytes:
    return encode_varint(number << 3 | _VARINT) + encode_varint(value)


def encode_metadata(content: bytes, data_class: int) -> bytes:
    plugin = encode_bytes(1, PLUGIN.encode()) + encode_bytes(2, content)
    return encode_bytes(1, plugin) + encode_integer(4, data_class)


def encode_tensor(tag: str, payload: bytes | Sequence[bytes], metadata: bytes = b"") -> bytes:
    """A Summary.Value with strings: a single payload has rank 0, a sequence of blobs has rank 1."""
    single = isinstance(payload, bytes)
    blobs = [payload] if isinstance(payload, bytes) else payload
    shape = b"" if single else encode_bytes(2, encode_integer(1, len(blobs)))
    strings = b"".join(encode_bytes(8, blob) for blob in blobs)
    tensor = encode_integer(1, _DT_STRING) + encode_bytes(2, shape) + strings
    value = encode_bytes(1, tag.encode("utf-8", "replace")) + encode_bytes(8, tensor)
    return value + (encode_bytes(9, metadata) if metadata else b"")


def encode_scalars(wall_time: float, step: int, values: Mapping[str, float]) -> bytes:
    """Plain scalars, by tag, as TensorBoard and everyone who syncs its logs reads them: 32 bits, infinite beyond their
    range. All but the numbers is the same at every step."""
    begins, size = _begin_scalars(tuple(values))
    numbers = [_FLOAT.pack(narrow(value)) for value in values.values()]
    head = encode_clock(wall_time, step) + encode_varint(5 << 3 | _BYTES) + encode_varint(size)
    return b"".join([head, *(part for both in zip(begins, numbers, strict=True) for part in both)])


@lru_cache(maxsize=64)
def _begin_scalars(tags: tuple[str, ...]) -> tuple[list[bytes], int]:
    """What stands before each number, and how long all of it is with the numbers."""
    begins = [_begin_scalar(tag) for tag in tags]
    begins = [encode_varint(1 << 3 | _BYTES) + encode_varint(len(own) + _FLOAT.size) + own for own in begins]
    return begins, sum(len(own) + _FLOAT.size for own in begins)


def narrow(value: float) -> float:
    return value if not abs(value) > _FLOAT_MAX else math.copysign(math.inf, value)


@lru_cache(maxsize=1024)
def _begin_scalar(tag: str) -> bytes:
    return encode_bytes(1, tag.encode("utf-8", "replace")) + encode_varint(2 << 3 | _FIXED32)


def encode_event(wall_time: float, step: int, values: Sequence[bytes]) -> bytes:
    summary = b"".join([encode_bytes(1, value) for value in values])
    return encode_clock(wall_time, step) + encode_bytes(5, summary)


def encode_clock(wall_time: float, step: int) -> bytes:
    return encode_varint(1 << 3 | _FIXED64) + _DOUBLE.pack(wall_time) + encode_integer(2, step)


def encode_version(wall_time: float) -> bytes:
    """What every event file begins with."""
    return encode_varint(1 << 3 | _FIXED64) + _DOUBLE.pack(wall_time) + encode_bytes(3, b"brain.Event:2")


@dataclass
class Value:
    tag: str = ""
    scalar: float | None = None
    plugin: str = ""
    content: bytes = b""
    tensor: bytes = b""

    def strings(self) -> list[bytes]:
        return list(self._read_strings())

    def read_string(self) -> bytes:
        """The one string of a header or a record; raises ValueError where there are none or several."""
        strings = list(islice(self._read_strings(), 2))
        if len(strings) != 1:
            raise ValueError("a header and a record are one string each")
        return strings[0]

    def count_strings(self) -> int:
        return sum(1 for _ in self._read_strings())

    def pick_string(self, index: int) -> bytes:
        """The string at this place; b"" where there are fewer."""
        return next(islice(self._read_strings(), index, None), b"")

    def _read_strings(self) -> Iterator[bytes]:
        return (blob for number, blob in read_fields(self.tensor) if number == 8 and isinstance(blob, bytes))


@dataclass
class Event:
    wall_time: float = 0.0
    step: int = 0
    version: str = ""
    summary: bytes = b""

    @property
    def is_plain(self) -> bool:
        """Half of a log is plain scalars, which Cockpit never reads back. The tag comes first, so this is quick."""
        start = self.summary[:64]
        return not any(mark in start for mark in _MARKS)

    @property
    def values(self) -> Iterator[Value]:
        """One at a time, because two bytes can stand for an empty one. Raises ValueError if this is no summary."""
        return (_decode_value(raw) for key, raw in read_fields(self.summary) if key == 1 and isinstance(raw, bytes))


def read_fields(data: bytes) -> Iterator[tuple[int, int | float | bytes]]:
    """All fields of one message, in order; raises ValueError if it is no message."""
    position, end = 0, len(data)
    while position < end:
        key, position = read_varint(data, position, end)
        kind = key & 7
        value: int | float | bytes
        if kind == _VARINT:
            value, position = read_varint(data, position, end)
        elif kind in (_BYTES, _FIXED64, _FIXED32):
            size = {_FIXED64: 8, _FIXED32: 4}.get(kind, 0)
            if kind == _BYTES:
                size, position = read_varint(data, position, end)
            if size > end - position:
                raise ValueError("a field runs past its message")
            raw = data[position : position + size]
            position += size
            value = raw if kind == _BYTES else (_DOUBLE if kind == _FIXED64 else _FLOAT).unpack(raw)[0]
        else:
            raise ValueError(f"wire type {kind}")
        yield key >> 3, value


def decode_event(data: bytes) -> Event:
    """The event in ``data``; raises ValueError where there is none."""
    event = Event()
    for number, value in read_fields(data):
        if number == 1 and isinstance(value, float):
            event.wall_time = value
        elif number == 2 and isinstance(value, int):
            event.step = value
        elif number == 3 and isinstance(value, bytes):
            event.version = value.decode("utf-8", "replace")
        elif number == 5 and isinstance(value, bytes):
            event.summary = value
    return event


def _decode_value(data: bytes) -> Value:
    value = Value()
    for number, raw in read_fields(data):
        if isinstance(raw, float) and number == 2:
            value.scalar = raw
        elif isinstance(raw, bytes):
            if number == 1:
                value.tag = raw.decode("utf-8", "replace")
            elif number == 8:
                value.tensor = raw
            elif number == 9:
                value.plugin, value.content = _decode_metadata(raw)
    return value


def _decode_metadata(data: bytes) -> tuple[str, bytes]:
    for number, raw in read_fields(data):
        if number == 1 and isinstance(raw, bytes):
            parts = {key: item for key, item in read_fields(raw) if isinstance(item, bytes)}
            return parts.get(1, b"").decode("utf-8", "replace"), parts.get(2, b"")
    return "", b""

"""The columns of a batch as bytes, written by hand: a message to a notebook has a hundred of them, five times a second."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from cockpit_core.foundation import records
from cockpit_core.schema import cockpit_pb2 as pb
from cockpit_core.schema.varint import encode_varint

_BYTES = 2  # the wire type of texts, bytes and messages


def encode_columns(columns: Iterable[records.BatchColumn]) -> bytes:
    """The same bytes as those of a ``pb.Batch`` with nothing but these columns."""
    parts: list[bytes] = []
    for column in columns:
        values = np.asarray(column.values, dtype="<f8")
        start, size = _begin_array("values", pb.DTYPE_FLOAT64, values.size, 8)
        named = _encode_names(column.name, column.layer)
        rows: tuple[bytes, ...] = ()
        if column.rows is not None:
            begin, length = _begin_array("rows", pb.DTYPE_UINT32, column.rows.size, 4)
            rows = (begin, np.asarray(column.rows, dtype="<u4").tobytes())
            size += length
        end = _DECIMATED if column.decimated else b""
        parts += (_COLUMN, encode_varint(len(named) + size + len(end)), named, *rows, start, values.tobytes(), end)
    return b"".join(parts)


def pack_whole(columns: Iterable[tuple[str, str, bytes]], count: int) -> bytes:
    """The same for columns with a value in each of ``count`` rows: name, layer, and the numbers as they are stored."""
    start, size = _begin_array("values", pb.DTYPE_FLOAT64, count, 8)
    parts: list[bytes] = []
    for name, layer, numbers in columns:
        named = _encode_names(name, layer)
        parts += (_COLUMN, encode_varint(len(named) + size), named, start, numbers)
    return b"".join(parts)


def _key(message: type, field: str, kind: int) -> bytes:
    return encode_varint(message.DESCRIPTOR.fields_by_name[field].number << 3 | kind)  # type: ignore[attr-defined]


_COLUMN = _key(pb.Batch, "columns", _BYTES)
_DECIMATED = _key(pb.Column, "decimated", 0) + b"\x01"


@lru_cache(4096)
def _encode_names(name: str, layer: str) -> bytes:
    return pb.Column(name=name, layer=layer).SerializeToString()


@lru_cache(256)
def _begin_array(field: str, dtype: pb.DType, count: int, item: int) -> tuple[bytes, int]:
    """What stands before the numbers of an array of one dimension, and how long the field is with them."""
    data = _key(pb.Array, "data", _BYTES) + encode_varint(count * item) if count else b""
    begin = pb.Array(dtype=dtype, shape=(count,)).SerializeToString() + data
    length = len(begin) + count * item
    start = _key(pb.Column, field, _BYTES) + encode_varint(length) + begin
    return start, len(start) + count * item

"""A histogram of one dimension in the bytes that protobuf would give it, put together by hand as ``light`` does: a small
network spends more time on three such messages than on counting what is in them."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import lru_cache
from struct import Struct

import numpy as np

from cockpit_core.foundation import records
from cockpit_core.schema import cockpit_pb2 as pb
from cockpit_core.schema.varint import encode_varint

_KINDS = {np.dtype("<u4"): pb.DTYPE_UINT32, np.dtype("<u8"): pb.DTYPE_UINT64}
_DOUBLE = Struct("<d")
_ZERO = bytes(8)
_TAGS = [bytes([number << 3 | 1]) for number in range(7, 14)]
_MOST = 2**32


def encode_flat(histogram: records.Histogram, counts: np.ndarray, edges: bytes, apart: Sequence[float]) -> bytes | None:
    """``counts`` in the type in which they are stored, ``edges`` as a message, ``apart``: the seven numbers that are counted
    apart. None where protobuf writes it."""
    step = histogram.step
    if type(step) is not int or not 0 <= step < _MOST or counts.ndim != 1 or counts.dtype not in _KINDS:
        return None
    data, codec = counts.tobytes(), b""
    packed = zlib.compress(data, 1)
    if len(packed) < len(data):
        data, codec = packed, b"\x18\1"
    start = _begin_array(_KINDS[counts.dtype], counts.size)
    array = b"".join((start, codec, b"\x22", encode_varint(len(data)), data)) if data else start
    pieces = [
        _text(b"\x0a", histogram.quantity), b"\x10" + encode_varint(step) if step else b"", _text(b"\x1a", histogram.layer),
        b"\x22", encode_varint(len(array)), array, b"\x2a", encode_varint(len(edges)), edges,
    ]  # fmt: skip
    for tag, number in zip(_TAGS, apart, strict=True):
        if (value := _DOUBLE.pack(number)) != _ZERO:
            pieces += (tag, value)
    return b"".join(pieces)


@lru_cache(maxsize=64)
def _begin_array(kind: int, size: int) -> bytes:
    """All but its codec and its numbers."""
    shape = encode_varint(size)
    return b"\x08" + encode_varint(kind) + b"\x12" + encode_varint(len(shape)) + shape


@lru_cache(maxsize=1024)
def _text(tag: bytes, text: str) -> bytes:
    encoded = text.encode()
    return tag + encode_varint(len(encoded)) + encoded if encoded else b""

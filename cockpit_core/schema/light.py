"""The record of an ordinary step in the bytes that protobuf would give it, put together by hand.

Names and lengths are the same at every step; only numbers change. So what stands between the numbers is made once, and
a record is a few joined pieces: on a small network protobuf's own way takes as long as all quantities together.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from struct import Struct

import numpy as np

from cockpit_core.foundation import records
from cockpit_core.schema import cockpit_pb2 as pb
from cockpit_core.schema.varint import encode_varint

_FLOAT32 = np.finfo(np.float32)
_TINY, _HUGE = float(_FLOAT32.tiny), float(_FLOAT32.max)
_DOUBLE = Struct("<d")
_ZERO = bytes(8)
_VARINT, _FIXED64, _BYTES = 0, 1, 2
_ALPHA_TAGS = [bytes([number << 3 | _FIXED64]) for number in range(4, 16)]
_ALPHA = Struct("<" + "cd" * len(_ALPHA_TAGS))
_MOST = 2**32
FEW = 512
"""Values of all layers that are looked at one by one in less time than numpy takes to begin."""


def encode_plain(record: records.Record, kind: int) -> bytes | None:
    """None where the record holds what few records hold: then protobuf writes it."""
    rare = record.notices or record.findings or record.estimates or record.status or record.error
    counts = (record.seq, record.step, record.generation, record.batch_size, *record.top_samples)
    if rare or set(map(type, counts)) != {int} or min(counts) < 0 or max(counts) >= _MOST:
        return None
    pieces = [
        *_integers((b"\x08", record.seq), (b"\x10", kind), (b"\x18", record.step), (b"\x20", record.generation)),
        _double(b"\x29", record.wall_time),
        _double(b"\x31", record.time),
        b"" if record.epoch is None else b"\x39" + _DOUBLE.pack(record.epoch),
        *_integers((b"\x40", record.batch_size)),
    ]
    if record.scalars:
        values = record.scalars.values()
        pieces += (_scalars(tuple(record.scalars)), _struct(len(values), "d").pack(*values))
    if record.layers:
        pieces += _layers(record)
    pieces += map(_alpha, record.alphas)
    pieces += [_missing(name, reason) for name, reason in record.missing.items()]
    if record.costs:
        pieces += _costs(record.costs)
    if record.top_samples:
        samples = b"".join(map(encode_varint, record.top_samples))
        pieces += (b"\x82\x01", encode_varint(len(samples)), samples)
    if record.triggered:
        pieces.append(b"\x98\x01\1")
    return b"".join(pieces)


def fits_single(values: Sequence[float]) -> bool:
    """Do all of them fit into 32 bits? What would become zero or infinite does not."""
    for value in values:
        size = abs(value)
        if not (_TINY <= size <= _HUGE or size == 0 or size == np.inf or size != size):
            return False
    return True


@lru_cache(maxsize=64)
def _tag(number: int, kind: int) -> bytes:
    return encode_varint(number << 3 | kind)


@lru_cache(maxsize=256)
def _struct(count: int, kind: str) -> Struct:
    return Struct(f"<{count}{kind}")


def _integers(*fields: tuple[bytes, int]) -> list[bytes]:
    """What is zero is not written."""
    return [tag + encode_varint(value) for tag, value in fields if value]


def _double(tag: bytes, value: float) -> bytes:
    packed = _DOUBLE.pack(value)
    return tag + packed if packed != _ZERO else b""


def _text(number: int, text: str) -> bytes:
    encoded = text.encode()
    return _tag(number, _BYTES) + encode_varint(len(encoded)) + encoded if encoded else b""


@lru_cache(maxsize=64)
def _scalars(names: tuple[str, ...]) -> bytes:
    """All but the values."""
    parts = [name.encode() for name in names]  # an empty name has its place, too
    inner = b"".join(_tag(1, _BYTES) + encode_varint(len(part)) + part for part in parts)
    inner += _tag(2, _BYTES) + encode_varint(8 * len(names))
    return _tag(9, _BYTES) + encode_varint(len(inner) + 8 * len(names)) + inner


@lru_cache(maxsize=256)
def _missing(name: str, reason: str) -> bytes:
    inner = _text(1, name) + _text(2, reason)
    return b"\x6a" + encode_varint(len(inner)) + inner


def _costs(costs: dict[str, float]) -> list[bytes]:
    packed = _struct(len(costs), "d").pack(*costs.values())
    numbers = [packed[k : k + 8] for k in range(0, len(packed), 8)]
    if _ZERO in numbers:
        pairs = zip(costs, numbers, strict=True)
        return [_cost(name, own != _ZERO) + (own if own != _ZERO else b"") for name, own in pairs]
    return [part for both in zip(_names_of_costs(tuple(costs)), numbers, strict=True) for part in both]


@lru_cache(maxsize=64)
def _names_of_costs(names: tuple[str, ...]) -> list[bytes]:
    return [_cost(name, True) for name in names]


def _cost(name: str, spent: bool) -> bytes:
    """All but the seconds; none are written where they are zero."""
    inner = _text(1, name) + (_tag(2, _FIXED64) if spent else b"")
    return _tag(15, _BYTES) + encode_varint(len(inner) + 8 * spent) + inner


def _alpha(fit: records.AlphaFit) -> bytes:
    step, alpha, *numbers = vars(fit).values()
    first = [*_integers((b"\x08", step)), _double(b"\x11", alpha or 0.0), b"\x18\1" if alpha is not None else b""]
    if 0.0 in numbers:
        rest = b"".join([_double(tag, value) for tag, value in zip(_ALPHA_TAGS, numbers, strict=True)])
    else:
        rest = _ALPHA.pack(*[part for both in zip(_ALPHA_TAGS, numbers, strict=True) for part in both])
    inner = b"".join([*first, rest])
    return b"\x5a" + encode_varint(len(inner)) + inner


def _layers(record: records.Record) -> list[bytes]:
    """32 bits per value where all values of the record fit, so that a record of 200 layers stays under 8 kB."""
    rows = [np.asarray(row, np.float64).tolist() for row in record.layers.values()]
    count = len(rows[0])
    if any(len(row) != count for row in rows):
        raise ValueError("every quantity has one number for each layer")
    single = all(map(fits_single, rows)) if len(rows) * count <= FEW else fits_single_array(np.array(rows))
    pack = _struct(count, "f" if single else "d").pack
    pieces: list[bytes] = []
    for name, row in zip(record.layers, rows, strict=True):
        absent = record.layers_missing.get(name)
        missing = b"" if absent is None else np.asarray(absent, bool).tobytes()
        is_partial = 1 in missing
        pieces += (_layer(name, single, count, len(missing) if is_partial else 0), pack(*row))
        if is_partial:
            present = bytes(1 - own for own in missing)
            pieces.append(_tag(3, _BYTES) + encode_varint(len(present)) + present)
    return pieces


def fits_single_array(wide: np.ndarray) -> bool:
    size = np.abs(wide)
    return bool(((size == 0) | ((size >= _TINY) & (size <= _HUGE)) | ~np.isfinite(size)).all())


@lru_cache(maxsize=1024)
def _layer(name: str, single: bool, count: int, missing: int) -> bytes:
    """All of a vector but its numbers, and the ``missing`` bytes that say which layers have one."""
    size = (4 if single else 8) * count
    kind = pb.DTYPE_FLOAT32 if single else pb.DTYPE_FLOAT64
    shape = encode_varint(count)
    array = _tag(1, _VARINT) + encode_varint(kind) + _tag(2, _BYTES) + encode_varint(len(shape)) + shape
    array += _tag(4, _BYTES) + encode_varint(size) if size else b""
    inner = _text(1, name) + _tag(2, _BYTES) + encode_varint(len(array) + size) + array
    rest = len(_tag(3, _BYTES) + encode_varint(missing)) + missing if missing else 0
    return _tag(10, _BYTES) + encode_varint(len(inner) + size + rest) + inner

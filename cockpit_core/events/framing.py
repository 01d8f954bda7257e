"""TFRecord framing: length (8 bytes), its CRC (4), payload, its CRC (4)."""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np

from cockpit_core.events.crc import masked_crc, masked_crc_windows

HEAD = 12
FOOT = 4
# A length beyond this is damage, whatever its CRC says: nothing that Cockpit writes comes near.
MAX_RECORD = 256 * 1024 * 1024

_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")


def frame(payload: bytes) -> bytes:
    length = _LENGTH.pack(len(payload))
    return b"".join((length, _CRC.pack(masked_crc(length)), payload, _CRC.pack(masked_crc(payload))))


class Frame(NamedTuple):
    """What stands at one position of a buffer.

    ``state`` is "whole", "damaged" (the payload's CRC is wrong, ``end`` is right), "short" (more bytes are needed,
    up to ``end``) or "lost" (the length itself is wrong, nobody knows where the record ends).
    """

    state: str
    start: int
    end: int


def look(data: bytes, position: int) -> Frame:
    if len(data) - position < HEAD:
        return Frame("short", position, position + HEAD)
    head = data[position : position + HEAD]
    (length,) = _LENGTH.unpack_from(head)
    if length > MAX_RECORD or _CRC.unpack_from(head, 8)[0] != masked_crc(head[:8]):
        return Frame("lost", position, position)
    start, end = position + HEAD, position + HEAD + length + FOOT
    if end > len(data):
        return Frame("short", start, end)
    whole = _CRC.unpack_from(data, end - FOOT)[0] == masked_crc(data[start : end - FOOT])
    return Frame("whole" if whole else "damaged", start, end)


def find_heads(data: bytes, position: int) -> np.ndarray:
    """All positions from ``position`` on that hold a sound length, in order."""
    raw = np.frombuffer(data, dtype=np.uint8)
    count = raw.size - HEAD + 1 - position
    if count <= 0:
        return np.empty(0, np.int64)
    windows = [raw[position + k : position + k + count] for k in range(HEAD)]
    small = (windows[4] | windows[5] | windows[6] | windows[7]) == 0  # lengths of at most MAX_RECORD
    starts = np.flatnonzero(small & (windows[3] <= MAX_RECORD >> 24)) + position
    if not starts.size:
        return starts
    stored = sum(raw[starts + 8 + k].astype(np.uint32) << np.uint32(8 * k) for k in range(4))
    return starts[masked_crc_windows(data, starts) == stored]

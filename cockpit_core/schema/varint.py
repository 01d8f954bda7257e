"""Whole numbers as protobuf writes them: seven bits in a byte, the lowest first, and the top bit says whether more
follow."""

from __future__ import annotations

_SHORT = [bytes([value]) for value in range(0x80)]


def encode_varint(value: int) -> bytes:
    if value < 0x80:
        return _SHORT[value] if value >= 0 else bytes([value])  # which says that there is no such thing
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def read_varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    """The number at ``position``, and where it ends; raises ValueError where it does not end before ``end``."""
    value = shift = 0
    while position < end and shift <= 63:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise ValueError("a number runs past its message")

"""Masked CRC-32C, which guards every length and every payload of an event file.

``google-crc32c`` does it in C where it is installed. Without it, numpy does: the CRC is linear over GF(2), so the
contributions of all bytes can be looked up in tables by position and combined by exclusive or.
"""

from __future__ import annotations

import struct

import numpy as np

try:
    from google_crc32c import value as _native
except Exception:  # a broken native extension must not break the log
    _native = None

_BLOCK = 256
_AT_ONCE = 4096
_LENGTH = struct.Struct("<Q")


def _byte_table() -> np.ndarray:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(0x82F63B78), table >> 1)
    return table


def _position_tables(table: np.ndarray) -> np.ndarray:
    """``[k, b]``: what byte ``b`` contributes when ``k`` bytes follow it."""
    tables = np.empty((_BLOCK, 256), dtype=np.uint32)
    tables[0] = table
    for k in range(1, _BLOCK):
        tables[k] = table[tables[k - 1] & 0xFF] ^ (tables[k - 1] >> 8)
    return tables


_TABLE = _byte_table()
_TABLES = _position_tables(_TABLE)
_FLAT = _TABLES[::-1].reshape(-1)  # the last byte of a block has no followers
_ROWS = np.arange(_BLOCK, dtype=np.intp) * 256
_SMALL = [int(value) for value in _TABLE]


def crc32c_numpy(data: bytes | bytearray | memoryview) -> int:
    """CRC-32C without C code: about 5 ns per byte."""
    raw = np.frombuffer(data, dtype=np.uint8)
    blocks = raw.size // _BLOCK
    crc = 0xFFFFFFFF
    if blocks:
        table = raw[: blocks * _BLOCK].reshape(blocks, _BLOCK)
        for first in range(0, blocks, _AT_ONCE):  # each byte takes twelve meanwhile
            parts = np.bitwise_xor.reduce(_FLAT[table[first : first + _AT_ONCE] + _ROWS], axis=1)
            for part in parts.tolist():
                crc = part ^ _shift_block(crc)
    for byte in raw[blocks * _BLOCK :].tolist():
        crc = _SMALL[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


_SHIFT = [[int(value) for value in _TABLES[_BLOCK - 1 - k]] for k in range(4)]


def _shift_block(crc: int) -> int:
    """The register after one more block of zeros: its four bytes count as the first four of the block."""
    return _SHIFT[0][crc & 0xFF] ^ _SHIFT[1][crc >> 8 & 0xFF] ^ _SHIFT[2][crc >> 16 & 0xFF] ^ _SHIFT[3][crc >> 24]


def crc32c(data: bytes) -> int:
    return _native(data) if _native is not None else crc32c_numpy(data)


def mask(crc: int) -> int:
    """TFRecord stores CRCs rotated and offset, so that the CRC of data that contains CRCs stays sound."""
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def masked_crc(data: bytes) -> int:
    return mask(crc32c(data))


def masked_crc_windows(data: bytes, starts: np.ndarray) -> np.ndarray:
    """Masked CRC of the 8 bytes at each of ``starts``: finds a record after damage."""
    raw = np.frombuffer(data, dtype=np.uint8)
    crc = np.full(starts.size, 0xFFFFFFFF, dtype=np.uint32)
    for k in range(8):
        crc = _TABLE[(crc ^ raw[starts + k]) & 0xFF] ^ (crc >> 8)
    crc = ~crc
    return ((crc >> 15) | (crc << 17)) + np.uint32(0xA282EAD8)

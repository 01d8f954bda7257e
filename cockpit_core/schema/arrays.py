"""numpy arrays in messages: little endian bytes with type, shape and codec."""

from __future__ import annotations

import zlib

import numpy as np

from cockpit_core.schema import cockpit_pb2 as pb

MAX_ARRAY = 256 * 1024 * 1024

_DTYPES = {
    "f8": pb.DTYPE_FLOAT64,
    "f4": pb.DTYPE_FLOAT32,
    "u4": pb.DTYPE_UINT32,
    "u8": pb.DTYPE_UINT64,
    "i4": pb.DTYPE_INT32,
    "u1": pb.DTYPE_UINT8,
}
_NUMPY = {number: np.dtype("<" + name) for name, number in _DTYPES.items()}


def pack_array(values: np.ndarray, *, compress: bool = False) -> pb.Array:
    code = f"{values.dtype.kind}{values.dtype.itemsize}"
    if code not in _DTYPES:
        raise TypeError(f"the schema has no array of {values.dtype}; it has {', '.join(_DTYPES)}")
    data = np.ascontiguousarray(values, dtype="<" + code).tobytes()
    packed = zlib.compress(data, 1) if compress else data
    if len(packed) < len(data):
        return pb.Array(dtype=_DTYPES[code], shape=values.shape, codec=pb.CODEC_ZLIB, data=packed)
    return pb.Array(dtype=_DTYPES[code], shape=values.shape, data=data)


def unpack_array(array: pb.Array) -> np.ndarray:
    """A read-only array, without a copy where it was stored raw."""
    if array.dtype not in _NUMPY:
        raise ValueError(f"unknown dtype {array.dtype}")
    dtype = _NUMPY[array.dtype]
    size = dtype.itemsize
    for extent in array.shape:
        size *= extent  # Python integers: cannot wrap around
    if size > MAX_ARRAY:
        raise ValueError(f"an array of {size} bytes is refused")
    data = array.data
    if array.codec == pb.CODEC_ZLIB:
        data = _inflate(data, size)
    elif array.codec != pb.CODEC_RAW:
        raise ValueError(f"unknown codec {array.codec}")
    if len(data) != size:
        raise ValueError(f"{len(data)} bytes where the shape {list(array.shape)} needs {size}")
    return np.frombuffer(data, dtype=dtype).reshape(tuple(array.shape))


def _inflate(data: bytes, size: int) -> bytes:
    try:  # one byte more than expected is enough to see that there is too much
        return zlib.decompressobj().decompress(data, size + 1)
    except zlib.error as error:
        raise ValueError(f"damaged compression: {error}") from None

"""numpy arrays in messages: little endian bytes with type, shape and codec."""

from __future__ import annotations

import math
import zlib

import numpy as np

from cockpit_core.schema import cockpit_pb2 as pb

MAX_ARRAY = 256 * 1024 * 1024  # bytes; a layer of 64 million parameters is the largest that a log can hold
MAX_RANK = 32  # numpy's own limit is 32 or 64; PyTorch's layers have at most 5
MAX_RATIO = 1032  # no stream of deflate grows more than this

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


def measure_array(array: pb.Array) -> int:
    """How many bytes it takes in memory, as declared. Raises ValueError where that cannot be true or is too much.

    Nothing is multiplied, inflated or allocated before the numbers are known to be small.
    """
    if array.dtype not in _NUMPY:
        raise ValueError(f"unknown dtype {array.dtype}")
    if len(array.shape) > MAX_RANK:
        raise ValueError(f"an array of {len(array.shape)} dimensions is refused; {MAX_RANK} are the most")
    size = math.prod(array.shape, start=_NUMPY[array.dtype].itemsize)
    if size > MAX_ARRAY:
        raise ValueError(f"an array of {size} bytes is refused; {MAX_ARRAY} are the most")
    if array.codec == pb.CODEC_ZLIB:
        if size > MAX_RATIO * len(array.data):
            raise ValueError(f"{len(array.data)} compressed bytes cannot hold {size}")
    elif array.codec != pb.CODEC_RAW:
        raise ValueError(f"unknown codec {array.codec}")
    elif len(array.data) != size:
        raise ValueError(f"{len(array.data)} bytes where the shape {list(array.shape)} needs {size}")
    return size


def unpack_array(array: pb.Array) -> np.ndarray:
    """A read-only array, without a copy where it was stored raw."""
    size = measure_array(array)
    data = _inflate(array.data, size) if array.codec == pb.CODEC_ZLIB else array.data
    if len(data) != size:
        raise ValueError(f"{len(data)} bytes where the shape {list(array.shape)} needs {size}")
    return np.frombuffer(data, dtype=_NUMPY[array.dtype]).reshape(tuple(array.shape))


def _inflate(data: bytes, size: int) -> bytes:
    try:  # one byte more than expected is enough to see that there is too much
        return zlib.decompressobj().decompress(data, size + 1)
    except zlib.error as error:
        raise ValueError(f"damaged compression: {error}") from None

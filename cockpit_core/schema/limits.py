"""What a log may claim. Everything is checked on the parsed message, before anything is inflated, copied or multiplied.

A few bytes of a message can stand for many in memory: a compressed array, an empty entry of a list. Nothing that
Cockpit writes comes close to these limits; what exceeds them is damaged or hostile, and is refused with a ValueError.
"""

from __future__ import annotations

import math
from collections.abc import Sized

from cockpit_core.schema import cockpit_pb2 as pb
from cockpit_core.schema.arrays import MAX_RANK, measure_array

UINT32_MAX = 2**32 - 1
MAX_LIGHT = (
    8 * 1024 * 1024
)  # bytes of a header or of a record; 8 kB are usual. Parsed, a hostile one takes fifty times as much
MAX_LAYERS = 100_000
MAX_ENTRIES = 10_000  # of each list in a record: warnings, costs, layer vectors, ...
MAX_FITS = 100  # alphas in a record; one is usual
MAX_SCALARS = 100_000
MAX_GENERATION = 10_000  # how often a run can be resumed
MAX_SHOWN = 16 * 1024 * 1024  # bytes in a page of one histogram: two million bins
MAX_INFLATED = 256 * 1024 * 1024  # bytes in a page of all histograms of one message


def check_light(data: bytes) -> bytes:
    if len(data) > MAX_LIGHT:
        raise ValueError(f"a header or record of {len(data)} bytes is refused; {MAX_LIGHT} are the most")
    return data


def _check_count(what: str, entries: Sized, most: int) -> None:
    if len(entries) > most:
        raise ValueError(f"{len(entries)} {what} are refused; {most} are the most")


def check_header(message: pb.Header) -> pb.Header:
    _check_count("layers", message.layers, MAX_LAYERS)
    for layer in message.layers:
        _check_count("dimensions of a layer", layer.shape, MAX_RANK)
    _check_count("quantities", message.quantities, MAX_ENTRIES)
    _check_count("optimizers", message.optimizers, MAX_ENTRIES)
    for optimizer in message.optimizers:
        _check_count("parameter groups", optimizer.groups, MAX_ENTRIES)
    return message


def check_record(message: pb.Record) -> pb.Record:
    if message.seq >= UINT32_MAX:  # the number after it must fit too
        raise ValueError(f"record number {message.seq} is too large")
    if message.generation > MAX_GENERATION:
        raise ValueError(f"generation {message.generation} is refused; {MAX_GENERATION} is the last")
    _check_count("scalars", message.scalars.names, MAX_SCALARS)
    _check_count("samples", message.top_samples, MAX_SCALARS)
    _check_count("alphas", message.alphas, MAX_FITS)
    for name in ("layers", "warnings", "missing", "estimates", "costs"):
        _check_count(name, getattr(message, name), MAX_ENTRIES)
    for vector in message.layers:
        _check_vector(vector)
    return message


def _check_vector(vector: pb.LayerVector) -> None:
    """One float per layer, raw: compressed ones are never written, and would make a large table of a small file."""
    array = vector.values
    if len(array.shape) != 1 or array.dtype not in (pb.DTYPE_FLOAT32, pb.DTYPE_FLOAT64):
        raise ValueError(f"layer vector with {len(array.shape)} dimensions and of type {array.dtype}")
    if array.codec != pb.CODEC_RAW:
        raise ValueError("a layer vector is never compressed")
    measure_array(array)
    if vector.present and len(vector.present) != array.shape[0]:
        raise ValueError(f"{len(vector.present)} marks for {array.shape[0]} layers")


def check_histogram(message: pb.Histogram) -> int:
    """How many bytes it takes in a page, where all numbers are float64.

    Raises ValueError where its arrays cannot be read or do not belong together.
    """
    counts, edges, across = message.counts, message.edges, message.parameter_edges
    both = message.HasField("parameter_edges")
    arrays = [counts, edges, across] if both else [counts, edges]
    for array in arrays:
        measure_array(array)
    size = 8 * sum(math.prod(array.shape) for array in arrays)
    if list(edges.shape) not in ([0], _count_edges(counts, 0)):  # parameters, stored likewise, have none
        raise ValueError(f"edges of shape {list(edges.shape)} for counts of shape {list(counts.shape)}")
    if both and (len(counts.shape) != 2 or list(across.shape) != _count_edges(counts, 1)):
        raise ValueError(f"edges of shape {list(across.shape)} for counts of shape {list(counts.shape)}")
    return size


def _count_edges(counts: pb.Array, axis: int) -> list[int]:
    return [counts.shape[axis] + 1] if axis < len(counts.shape) else [-1]

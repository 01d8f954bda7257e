"""Between plain records and bytes. With ``arrays`` and ``findings`` beside it, the only Python that knows protobuf.

Decoding trusts nothing: whatever is wrong with the bytes becomes a ValueError, and no array is made larger than the
bytes justify.
"""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from google.protobuf.message import DecodeError, Message

from cockpit_core.foundation import records
from cockpit_core.schema import cockpit_pb2 as pb
from cockpit_core.schema.arrays import pack_array, unpack_array
from cockpit_core.schema.findings import finding_message, read_findings
from cockpit_core.schema.flat import encode_flat
from cockpit_core.schema.light import encode_plain, fits_single_array
from cockpit_core.schema.limits import check_header, check_histogram, check_light, check_record

SCHEMA_VERSION = 1

_KINDS = {"step": pb.KIND_STEP, "log": pb.KIND_LOG, "start": pb.KIND_START, "end": pb.KIND_END}
_KIND_NAMES = {number: name for name, number in _KINDS.items()}

M = TypeVar("M", bound=Message)
T = TypeVar("T")


def clean(item: T) -> T:
    """The same with every text encodable: messages of the operating system may hold halves of characters."""
    done: Any = item
    if isinstance(item, str):
        done = item.encode("utf-8", "replace").decode()
    elif isinstance(item, dict):
        done = {clean(key): clean(value) for key, value in item.items()}
    elif isinstance(item, list):
        done = [clean(entry) for entry in item]
    elif dataclasses.is_dataclass(item) and not isinstance(item, type):
        done = dataclasses.replace(item, **{name: clean(value) for name, value in vars(item).items()})
    return done


def parse(kind: type[M], data: bytes) -> M:
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise ValueError(f"not a {kind.__name__}: {error}") from None


def field_names(message: str) -> dict[int, str]:
    """Number: name, of each field of a message of the schema."""
    return {field.number: field.name for field in pb.DESCRIPTOR.message_types_by_name[message].fields}


# ---- header ----------------------------------------------------------------------------------------------------


def encode_header(header: records.Header) -> bytes:
    try:
        return header_message(header).SerializeToString(deterministic=True)
    except UnicodeEncodeError:
        return header_message(clean(header)).SerializeToString(deterministic=True)


def header_message(header: records.Header) -> pb.Header:
    plain = {name: getattr(header, name) for name in _HEADER_PLAIN}
    message = pb.Header(schema_version=SCHEMA_VERSION, num_parameters=header.num_parameters, **plain)
    for layer in header.layers:
        message.layers.add(**vars(layer))
    for quantity in header.quantities:
        known = vars(quantity) | {"options": None}
        message.quantities.append(quantity_message(tuple(known.items()), tuple(quantity.options.items())))
    for optimizer in header.optimizers:
        target = message.optimizers.add(name=optimizer.name)
        for index, group in enumerate(optimizer.groups):
            names = optimizer.group_layers[index] if index < len(optimizer.group_layers) else []
            target.groups.add(hyperparameters=group, layers=names)
    return message


@lru_cache(maxsize=256)
def quantity_message(known: tuple[tuple[str, Any], ...], options: tuple[tuple[str, str], ...]) -> pb.Quantity:
    """Headers are written again when something else in them has changed. Not to be changed."""
    return pb.Quantity(**dict(known) | {"options": dict(options)})


_HEADER_PLAIN = [
    "run_id",
    "name",
    "created",
    "revision",
    "model",
    "loss",
    "config",
    "schedule",
    "curvature",
    "versions",
    "git_commit",
    "batch_size",
    "covered",
    "notes",
    "options",
    "steps_per_epoch",
]


def decode_header(data: bytes) -> records.Header:
    message = check_header(parse(pb.Header, check_light(data)))
    header = records.Header(run_id=message.run_id, name=message.name, created=message.created)
    for name in _HEADER_PLAIN:
        value = getattr(message, name)
        setattr(header, name, type(getattr(header, name))(value))
    header.num_parameters = as_count(message.num_parameters)
    header.layers = [
        records.LayerInfo(x.name, tuple(x.shape), as_count(x.size), x.module, x.method, x.reason)
        for x in message.layers
    ]
    header.quantities = [
        records.QuantityInfo(
            x.name, x.kind, x.layerwise, x.unit, x.description, x.schedule, dict(x.options), x.defined_for_sgd
        )
        for x in message.quantities
    ]
    header.optimizers = [
        records.OptimizerInfo(x.name, [dict(g.hyperparameters) for g in x.groups], [list(g.layers) for g in x.groups])
        for x in message.optimizers
    ]
    return header


# ---- light record ----------------------------------------------------------------------------------------------


def encode_record(record: records.Record) -> bytes:
    try:
        return encode_plain(record, _KINDS[record.kind]) or encode_any(record)
    except UnicodeEncodeError:
        return encode_any(clean(record))


def encode_any(record: records.Record) -> bytes:
    """Whatever it holds. ``encode_plain`` gives the same bytes, where it gives any."""
    message = pb.Record(
        seq=record.seq,
        kind=_KINDS[record.kind],
        step=record.step,
        generation=record.generation,
        wall_time=record.wall_time,
        time=record.time,
        epoch=record.epoch,
        batch_size=record.batch_size,
        top_samples=record.top_samples,
        status=record.status,
        error=record.error,
        triggered=record.triggered,
    )
    if record.scalars:
        message.scalars.names.extend(record.scalars)
        message.scalars.values = np.array(list(record.scalars.values()), dtype="<f8").tobytes()
    if record.layers:
        _add_layers(message, record)
    message.alphas.extend(alpha_message(fit) for fit in record.alphas)
    message.warnings.extend(notice_message(notice) for notice in record.notices)
    message.findings.extend(finding_message(finding) for finding in record.findings)
    for name, reason in record.missing.items():
        message.missing.add(name=name, reason=reason)
    for name, (error, method) in record.estimates.items():
        message.estimates.add(name=name, error=error, method=method)
    for name, seconds in record.costs.items():
        message.costs.add(name=name, seconds=seconds)
    return message.SerializeToString()


def _add_layers(message: pb.Record, record: records.Record) -> None:
    """32 bits per value where all values of the record fit, so that a record of 200 layers stays under 8 kB."""
    wide = np.array(list(record.layers.values()), dtype="<f8")  # [names, layers]
    single = fits_single_array(wide)
    values, dtype = (wide.astype("<f4"), pb.DTYPE_FLOAT32) if single else (wide, pb.DTYPE_FLOAT64)
    shape = (wide.shape[1],)
    for name, row in zip(record.layers, values, strict=True):
        target = message.layers.add(name=name, values=pb.Array(dtype=dtype, shape=shape, data=row.tobytes()))
        absent = record.layers_missing.get(name)
        if absent is not None and np.any(absent):
            target.present = (~np.asarray(absent, dtype=bool)).astype(np.uint8).tobytes()


def decode_record(data: bytes, most_notices: int | None = None) -> records.Record:
    """``most_notices`` is how many are wanted; the rest is not even looked at."""
    message = check_record(parse(pb.Record, check_light(data)))
    if message.kind not in _KIND_NAMES:
        raise ValueError(f"unknown kind of record: {message.kind}")
    names = message.scalars.names
    values = message.scalars.values
    if len(values) != 8 * len(names):
        raise ValueError(f"{len(names)} names with {len(values)} bytes of values")
    record = records.Record(
        kind=_KIND_NAMES[message.kind],
        step=message.step,
        wall_time=message.wall_time,
        time=message.time,
        seq=message.seq,
        generation=message.generation,
        epoch=message.epoch if message.HasField("epoch") else None,
        batch_size=message.batch_size,
        scalars=dict(zip(names, np.frombuffer(values, "<f8").tolist(), strict=True)),
        top_samples=list(message.top_samples),
        status=message.status,
        error=message.error,
        triggered=message.triggered,
    )
    for vector in message.layers:
        _read_layers(record, vector)
    record.alphas = [read_alpha(fit) for fit in message.alphas]
    record.notices = [read_notice(notice) for notice in message.warnings[:most_notices]]
    record.findings = read_findings(message.findings)
    record.missing = {x.name: x.reason for x in message.missing}
    record.estimates = {x.name: (x.error, x.method) for x in message.estimates}
    record.costs = {x.name: x.seconds for x in message.costs}
    return record


def _read_layers(record: records.Record, vector: pb.LayerVector) -> None:
    values = unpack_array(vector.values)
    record.layers[vector.name] = values
    if vector.present:
        record.layers_missing[vector.name] = np.frombuffer(vector.present, np.uint8) == 0


def alpha_message(fit: records.AlphaFit) -> pb.AlphaFit:
    plain = vars(fit).copy()
    alpha = plain.pop("alpha")
    return pb.AlphaFit(alpha=alpha or 0.0, has_alpha=alpha is not None, **plain)


def read_alpha(message: pb.AlphaFit) -> records.AlphaFit:
    rest = {name: getattr(message, name) for name in _ALPHA_PLAIN}
    return records.AlphaFit(alpha=message.alpha if message.has_alpha else None, **rest)


ALPHA_DOUBLES = {x.name for x in pb.AlphaFit.DESCRIPTOR.fields if x.type == x.TYPE_DOUBLE}
_ALPHA_PLAIN = [name for name in pb.AlphaFit.DESCRIPTOR.fields_by_name if name not in ("alpha", "has_alpha")]


def notice_message(notice: records.Notice) -> pb.Warning:
    return pb.Warning(**vars(notice))


def read_notice(message: pb.Warning) -> records.Notice:
    return records.Notice(message.step, message.kind, message.message, message.quantity, message.layer)


# ---- heavy record ----------------------------------------------------------------------------------------------


def encode_histogram(histogram: records.Histogram) -> bytes:
    counts = np.asarray(histogram.counts)
    if counts.dtype.kind == "f":  # not counts but values: the parameters themselves
        counts = counts.astype("<f8" if counts.dtype.itemsize == 8 else "<f4")
    else:
        counts = counts.astype("<u8" if counts.size and int(np.maximum.reduce(counts, None)) > 0xFFFFFFFF else "<u4")
    edges = np.asarray(histogram.edges, dtype="<f8").tobytes()
    apart = [float(getattr(histogram, name)) for name in _HISTOGRAM_COUNTS]
    if histogram.parameter_edges is None and (flat := encode_flat(histogram, counts, encode_edges(edges), apart)):
        return flat
    message = pb.Histogram(
        quantity=histogram.quantity,
        step=histogram.step,
        layer=histogram.layer,
        counts=pack_array(counts, compress=True),
        edges=pack_edges(edges),
    )
    for name, number in zip(_HISTOGRAM_COUNTS, apart, strict=True):
        setattr(message, name, number)
    if histogram.parameter_edges is not None:
        parameter_edges = np.asarray(histogram.parameter_edges, dtype="<f8")
        message.parameter_edges.CopyFrom(pack_edges(parameter_edges.tobytes()))
    return message.SerializeToString()


@lru_cache(maxsize=64)
def pack_edges(edges: bytes) -> pb.Array:
    """Those of most layers and steps are the same, and packing them takes as long as packing counts. Not to be changed."""
    return pack_array(np.frombuffer(edges, "<f8"), compress=True)


@lru_cache(maxsize=64)
def encode_edges(edges: bytes) -> bytes:
    return pack_edges(edges).SerializeToString()


_HISTOGRAM_COUNTS = ["nan", "pos_inf", "neg_inf", "below", "above", "parameter_below", "parameter_above"]


def decode_histogram(data: bytes) -> records.Histogram:
    message = parse(pb.Histogram, data)
    check_histogram(message)
    flat = not message.HasField("parameter_edges")
    return records.Histogram(
        quantity=message.quantity,
        step=message.step,
        layer=message.layer,
        counts=unpack_array(message.counts),
        edges=unpack_array(message.edges),
        parameter_edges=None if flat else unpack_array(message.parameter_edges),
        **{name: as_count(getattr(message, name)) for name in _HISTOGRAM_COUNTS},
    )


def measure_histogram(data: bytes) -> int:
    """How many bytes its arrays take in a page, without inflating them. Raises ValueError where they cannot be read."""
    return check_histogram(parse(pb.Histogram, data))


def as_count(value: float) -> int:
    if not np.isfinite(value):
        raise ValueError(f"{value} is no count")
    return round(value)


def encode_series(kind: str, generation: int, quantity: str = "") -> bytes:
    """The plugin data of a tag."""
    series = pb.SeriesMeta(schema_version=SCHEMA_VERSION, kind=kind, quantity=quantity, generation=generation)
    return series.SerializeToString()


def decode_series(data: bytes) -> tuple[str, int, str]:
    """kind, generation and quantity of a tag."""
    message = parse(pb.SeriesMeta, data)
    return message.kind, message.generation, message.quantity

"""A batch: a part of a run as columns, which hosts send to a page. See ``wire`` for the rest of the schema."""

from __future__ import annotations

from typing import Any

import numpy as np

from cockpit_core.foundation import records
from cockpit_core.schema import cockpit_pb2 as pb
from cockpit_core.schema.arrays import pack_array, unpack_array
from cockpit_core.schema.columns import encode_columns
from cockpit_core.schema.findings import finding_message, read_findings
from cockpit_core.schema.wire import (
    alpha_message,
    as_count,
    decode_header,
    decode_histogram,
    encode_histogram,
    header_message,
    notice_message,
    parse,
    read_alpha,
    read_notice,
)

PROTOCOL = 1
_BATCH_PLAIN = ["run", "run_id", "from_seq", "to_seq", "replace"]
_ROW_TYPES = {"seq": "<u4", "step": "<u4", "time": "<f8", "wall_time": "<f8", "epoch": "<f8", "triggered": "u1"}


def encode_batch(batch: records.Batch) -> bytes:
    message = pb.Batch(protocol=PROTOCOL, drop_from_step=batch.drop_from_step)
    for name in _BATCH_PLAIN:
        setattr(message, name, getattr(batch, name))
    for name, dtype in _ROW_TYPES.items():
        rows = getattr(batch, name)
        if rows is not None:
            getattr(message, name).CopyFrom(pack_array(np.asarray(rows, dtype=dtype)))
    if batch.header is not None:
        message.header.CopyFrom(header_message(batch.header))
    message.alphas.extend(alpha_message(fit) for fit in batch.alphas)
    message.warnings.extend(notice_message(notice) for notice in batch.notices)
    message.findings.extend(finding_message(finding) for finding in batch.findings)
    for row in sorted({*batch.missing, *batch.top_samples}):
        missing = [pb.Missing(name=name, reason=reason) for name, reason in batch.missing.get(row, {}).items()]
        message.notes.add(row=row, missing=missing, top_samples=batch.top_samples.get(row, []))
    for quantity, steps in batch.heavy.items():
        message.heavy.add(quantity=quantity, steps=pack_array(np.array(steps, dtype="<u4")))
    message.histograms.extend(parse(pb.Histogram, encode_histogram(histogram)) for histogram in batch.histograms)
    message.status.CopyFrom(
        pb.Status(
            state=batch.state,
            error=batch.error,
            last_wall_time=batch.last_wall_time,
            records=batch.records,
            expected=batch.expected,
            broken=batch.broken,
        )
    )
    return message.SerializeToString(deterministic=True) + encode_columns(batch.columns)  # fields may come in any order


def decode_batch(data: bytes) -> records.Batch:
    message = parse(pb.Batch, data)
    plain = {name: getattr(message, name) for name in _BATCH_PLAIN}
    rows: dict[str, Any] = {x: unpack_array(getattr(message, x)) for x in _ROW_TYPES if message.HasField(x)}
    if not {"seq", "step", "time", "wall_time"} <= set(rows):
        raise ValueError("a batch without rows")
    batch = records.Batch(**plain, **rows, drop_from_step=as_count(message.drop_from_step))
    if message.HasField("header"):
        batch.header = decode_header(message.header.SerializeToString())
    for column in message.columns:
        where = unpack_array(column.rows) if column.HasField("rows") else None
        values = unpack_array(column.values)
        batch.columns.append(records.BatchColumn(column.name, values, column.layer, where, column.decimated))
    batch.alphas = [read_alpha(fit) for fit in message.alphas]
    batch.notices = [read_notice(notice) for notice in message.warnings]
    batch.findings = read_findings(message.findings)
    for note in message.notes:
        if note.missing:
            batch.missing[note.row] = {x.name: x.reason for x in note.missing}
        if note.top_samples:
            batch.top_samples[note.row] = list(note.top_samples)
    batch.heavy = {x.quantity: unpack_array(x.steps).tolist() for x in message.heavy}
    batch.histograms = [decode_histogram(x.SerializeToString()) for x in message.histograms]
    status = message.status
    batch.state, batch.error, batch.last_wall_time = status.state, status.error, status.last_wall_time
    batch.records, batch.expected, batch.broken = status.records, status.expected, status.broken
    return batch

"""Logs made of arbitrary bytes, and everything that can be done with a log: what a fuzzer drives, and what replays its finds.

A find is a sequence of pieces: one byte for the kind, two for the length, then the payload. The pieces become the events
of a file with sound checksums, so that whatever is inside reaches the decoders.
"""

from __future__ import annotations

import io
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from cockpit_core.events import summary
from cockpit_core.events.batch import encode_batch
from cockpit_core.events.data import RunData
from cockpit_core.events.framing import frame
from cockpit_core.events.reader import read_events
from cockpit_core.events.resume import read_past
from cockpit_core.report.html import pack_run
from cockpit_core.report.show import describe_run, show_run
from cockpit_core.report.tables import make_csv, make_json
from cockpit_core.report.terminal import Terminal
from cockpit_core.schema import batches, wire
from cockpit_core.schema import cockpit_pb2 as pb
from cockpit_widget.fitting import encode_within

NAME = "events.out.tfevents.0000000001.host.1.0.cockpit"
DECODERS: list[Any] = [
    wire.decode_header,
    wire.decode_record,
    wire.decode_histogram,
    wire.measure_histogram,
    wire.decode_series,
    batches.decode_batch,
    lambda data: [value.strings() for value in summary.decode_event(data).values],
]
HEADER, RECORD, HEAVY, EVENT, RAW, FAR, META = range(7)  # kinds of pieces
MESSAGES = {HEADER: pb.Header, RECORD: pb.Record, HEAVY: pb.Histogram, FAR: pb.Histogram, META: pb.SeriesMeta}


def split_pieces(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= 3:
        size = int.from_bytes(data[1:3], "little")
        yield data[0] % 7, data[3 : 3 + size]
        data = data[3 + size :]


def join_pieces(pieces: list[tuple[int, bytes]]) -> bytes:
    return b"".join(bytes([kind]) + len(body).to_bytes(2, "little") + body for kind, body in pieces)


def build_file(data: bytes) -> bytes:
    """The event file that the pieces stand for; ``RAW`` is not framed, ``FAR`` has a step of 64 bits."""
    parts = [frame(summary.encode_version(1.0))]
    metadata = b""
    for number, (kind, body) in enumerate(split_pieces(data)):
        if kind == RAW:
            parts.append(body)
            continue
        if kind == META:
            metadata = summary.encode_metadata(body, summary.CLASS_TENSOR)
            continue
        event = body
        if kind in (HEADER, RECORD):
            tag = "cockpit/header" if kind == HEADER else "cockpit/records/000000"
            event = summary.encode_event(1.0 + number, number, [summary.encode_tensor(tag, body, metadata)])
        elif kind in (HEAVY, FAR):
            step = number if kind == HEAVY else (number + 1) << 31
            event = summary.encode_event(
                1.0, step, [summary.encode_tensor(f"cockpit/heavy/H{number % 2}", [body, body], metadata)]
            )
        metadata = b""
        parts.append(frame(event))
    return b"".join(parts)


def check_decoders(data: bytes) -> None:
    """Each gives a value or a ValueError, whatever it is given."""
    for decode in DECODERS:
        try:
            decode(data)
        except ValueError:
            continue


def check_log(data: bytes, folder: Path | None = None, hosts: bool = True) -> None:
    """Everything that can be done with a log works, or refuses with a sentence; ``hosts``: also what takes longer."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        path = Path(place) / NAME
        path.write_bytes(build_file(data))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            use_log(path, hosts)


def use_log(path: Path, hosts: bool = True) -> RunData:
    begun = time.monotonic()
    run = RunData(path.parent)
    _check_same(run, _read_slowly(path))
    for name in run.names:
        for layer in (None, *run.layers[:3]):
            _ask(run.scalars, name, layer)
            _ask(run.histogram, name, -1, layer)
    for name in run.histogram_names:
        assert all(0 <= step < 2**32 for step in run.histogram_steps(name))
    if hosts:
        use_values(run)
    batches.decode_batch(encode_batch(run, run="run", histograms=2))
    _ask(run.parameters)
    past = read_past([path])
    assert past.next_seq < 2**32
    assert past.generation <= 10_000
    run.refresh()
    assert time.monotonic() - begun < 20, "an age"
    return run


def use_values(run: RunData) -> None:
    """What the hosts make of a run: tables, messages of every size, a report, a terminal."""
    assert len(run.rows.seq) == len(run.table)
    run.to_pandas()
    loaded = [("run", run)]
    make_csv(loaded)
    make_json(loaded)
    batches.decode_batch(encode_batch(run, run="run", histograms=2))
    batches.decode_batch(encode_batch(run, run="run", max_points=4, since=1, until=run.expected))
    encode_within(run, run="run", limit=20_000, histograms=3)
    pack_run("run", run, 300)
    pack_run("run", run, 20_000)
    list(run.estimates.values())
    assert run.path is not None
    with mock.patch.dict("os.environ", {"COLUMNS": "80"}):
        stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="")
        show_run(run.path, Terminal(stream))
        stream.write(" ".join(describe_run(run, "run", 2.0)))
        stream.flush()
        text = stream.buffer.getvalue().decode()  # type: ignore[attr-defined]
    assert all(character.isprintable() or character == "\n" for character in text), repr(text)


def _ask(question: Any, *arguments: Any) -> None:
    try:
        question(*arguments)
    except (KeyError, ValueError):
        return


def _read_slowly(path: Path) -> RunData:
    """One record at a time, as the tab is fed: the slow truth of reading many at once."""
    run = RunData()
    for event in read_events(path)[0]:
        try:
            for value in () if event.is_plain else event.values:
                if value.tag == "cockpit/header":
                    run.feed_header(value.read_string())
                elif value.tag.startswith("cockpit/records/"):
                    run.feed_record(value.read_string())
        except ValueError:
            continue
    return run


def _check_same(run: RunData, slow: RunData) -> None:
    for left, right in zip(run.rows, slow.rows, strict=True):
        np.testing.assert_array_equal(left, right)
    assert list(run.table.columns) == list(slow.table.columns)
    for name, column in run.table.columns.items():
        for left, right in zip(column.get(), slow.table.columns[name].get(), strict=True):
            np.testing.assert_array_equal(left, right)
    assert repr(run.alphas) == repr(slow.alphas)
    assert run.missing == slow.missing
    assert (run.received, run.expected) == (slow.received, slow.expected)

"""What the tests of hostile files share."""

from __future__ import annotations

import contextlib
import time
import tracemalloc
from collections.abc import Iterator

from cockpit_core.events.writer import EventWriter
from cockpit_core.foundation import records

MEGABYTE = 2**20


@contextlib.contextmanager
def bounded(megabytes: float, seconds: float = 10.0) -> Iterator[None]:
    """Fails where more memory or time is taken: far from what is usual, and farther from what the faults took."""
    tracemalloc.start()
    begun = time.monotonic()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < megabytes * MEGABYTE
        assert time.monotonic() - begun < seconds
    finally:
        tracemalloc.stop()


def make_header(layers: list[str], revision: int = 0) -> records.Header:
    return records.Header("id", "run", 1.0, revision=revision, layers=[records.LayerInfo(x, (1,), 1) for x in layers])


def write_payload(writer: EventWriter, payload: bytes, step: int | None = None) -> None:
    """A record as it stands, whoever made it."""
    writer._write_tensor("cockpit/records/000000", "records", writer.next_seq if step is None else step, payload, 1.0)
    writer.next_seq += 1


def write_blob(writer: EventWriter, step: int, *blobs: bytes, name: str = "GradHist1d") -> None:
    writer._write_tensor(f"cockpit/heavy/{name}", "heavy", step, list(blobs), quantity=name)

"""What a resumed run must know about the one before."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from cockpit_core.events.reader import EventFile
from cockpit_core.events.summary import Value
from cockpit_core.foundation import records
from cockpit_core.schema import tags, wire
from cockpit_core.schema.limits import UINT32_MAX


@dataclass
class Past:
    """Where the earlier generations of a run ended."""

    generation: int = -1
    next_seq: int = 0
    next_revision: int = 0
    last_step: int = -1
    last_time: float = 0.0
    ended: bool = False
    """The last record says how the run ended."""
    header: records.Header | None = None
    heavy: dict[str, set[int]] = field(default_factory=dict)


def read_past(files: Iterable[Path]) -> Past:
    past = Past()
    for path in files:
        past.generation += 1  # at least one per file, even if no record of it survived
        for located in EventFile(path).read():
            try:
                for value in () if located.event.is_plain else located.event.values:
                    _learn(past, value, located.event.step)
            except ValueError:
                continue  # damaged: it tells nothing
    return past


def _learn(past: Past, value: Value, step: int) -> None:
    tag = value.tag
    if step >= UINT32_MAX:  # the number after it must fit too
        raise ValueError(f"{tag} at {step}")
    if tag == tags.HEADER:
        past.header = wire.decode_header(value.read_string())
        past.next_revision = max(past.next_revision, step + 1)
    elif tag.startswith(tags.RECORDS):
        past.next_seq = max(past.next_seq, step + 1)  # Event.step is seq, even for a record that cannot be read
        record = wire.decode_record(value.read_string())
        past.next_seq = max(past.next_seq, record.seq + 1)
        past.generation = max(past.generation, record.generation)
        past.last_time = max(past.last_time, record.time if math.isfinite(record.time) else 0.0)
        if record.kind == "start":  # the next step
            past.last_step = record.step - 1
        elif record.kind == "step" or record.step > 0:  # the others say 0 before the first step too
            past.last_step = record.step
        past.ended = record.kind == "end"
    elif tag.startswith(tags.HEAVY):
        past.heavy.setdefault(tags.heavy_quantity(tag), set()).add(step)

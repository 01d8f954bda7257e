"""What a resumed run must know of the one before."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from cockpit_core import records
from cockpit_core.events.reader import EventFile
from cockpit_core.events.summary import heavy_quantity
from cockpit_core.schema import wire


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
                    _learn(past, value.tag, located.event.step, value.strings())
            except ValueError:
                continue  # damaged: nothing can be learnt from it
    return past


def _learn(past: Past, tag: str, step: int, blobs: list[bytes]) -> None:
    if tag == "cockpit/header" and blobs:
        past.header = wire.decode_header(blobs[0])
        past.next_revision = max(past.next_revision, step + 1)
    elif tag.startswith("cockpit/records/") and blobs:
        past.next_seq = max(past.next_seq, step + 1)  # Event.step is seq
        record = wire.decode_record(blobs[0])
        past.generation = max(past.generation, record.generation)
        past.last_time = max(past.last_time, record.time)
        if record.kind == "start":  # of the step that comes
            past.last_step = record.step - 1
        elif record.kind == "step" or record.step > 0:  # the others say 0 also before the first step
            past.last_step = record.step
        past.ended = record.kind == "end"
    elif tag.startswith("cockpit/heavy/"):
        past.heavy.setdefault(heavy_quantity(tag), set()).add(step)

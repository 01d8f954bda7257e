"""The log of several processes: rank 0 writes, and all of them begin or none does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cockpit_core.distributed.group import Group, first_problem
from cockpit_core.events.resume import Past
from cockpit_core.events.writer import EventWriter
from cockpit_core.foundation.faults import describe_error
from cockpit_core.foundation.records import Record


class SilentWriter:
    """What the other ranks write to: nothing. Their numbers are in the log of rank 0."""

    generation = next_seq = 0

    def __init__(self, past: Past | None):
        self.past = past

    def preview(self, record: Record) -> Record:
        return record

    def _ignore(self, *args: Any, **kwargs: Any) -> bool:
        return False

    write_header = write_record = write_heavy = write_scalars = close = abandon = _ignore


def open_log(logdir: Path, resume: bool, group: Group, settings: str) -> tuple[Any, Path]:
    """The writer and where it writes. With several ranks all of them fail if one does, or if they were told different things."""
    if not group.is_joint:
        return EventWriter(logdir, resume=resume), logdir
    error: Exception | None = None
    writer: Any = None
    try:
        writer = EventWriter(logdir, resume=resume) if group.rank == 0 else None
    except Exception as raised:
        error = raised
    past = None if writer is None else writer.past
    answers = group.gather("start", ("" if error is None else describe_error(error), settings, logdir, past))
    problem = first_problem([answer[0] for answer in answers])
    if not problem and len({answer[1] for answer in answers}) > 1:
        problem = "the arguments differ between ranks: " + " | ".join(answer[1] for answer in answers)
    if problem:
        if writer is not None:
            writer.close()
        raise error or RuntimeError(f"cockpit_core.track(...): {problem}")
    return writer or SilentWriter(answers[0][3]), answers[0][2]

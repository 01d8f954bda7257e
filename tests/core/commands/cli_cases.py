"""What the tests of the command line share."""

from __future__ import annotations

import io
import time
from pathlib import Path

import numpy as np

from cockpit_core.events.writer import EventWriter
from cockpit_core.foundation.records import Header, LayerInfo, Notice, Record

HOSTILE = "evil\x1b[31m\x07name"


def write_run(path: Path, losses: list[float], name: str = "", end: str = "finished", error: str = "") -> Path:
    writer = EventWriter(path)
    layers = [LayerInfo("fc.weight", (2, 3), 6), LayerInfo(HOSTILE, (2,), 2)]
    writer.write_header(Header(run_id="1", name=name or path.name, created=time.time(), model="Net", layers=layers))
    for step, loss in enumerate(losses):
        writer.write_record(
            Record(
                kind="step",
                step=step,
                wall_time=time.time(),
                time=float(step),
                scalars={"Loss": loss, "GradNorm": loss / 2},
                layers={"GradNorm": np.array([loss, 2 * loss])},
                costs={"step": 0.1},
            )
        )
    if end:
        notices = [Notice(step=1, kind="note", message=f"look at {HOSTILE}")]
        writer.write_record(
            Record(
                kind="end",
                step=len(losses),
                wall_time=time.time(),
                time=9.0,
                status=end,
                error=error,
                notices=notices,
            )
        )
    writer.close()
    return path


class Screen(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True

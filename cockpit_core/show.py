"""A run as text, for people on a remote shell: what ``cockpit ls`` and ``cockpit show`` print."""

from __future__ import annotations

import fnmatch
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cockpit_core.terminal import Terminal, clean, draw_sparkline, format_age, format_number, format_table

if TYPE_CHECKING:
    from cockpit_core.events.data import RunData

HIDDEN = ("cost/", "error/")  # summed up in one line, or shown beside the value they belong to
EVENTS = "events.out.tfevents.*.cockpit"
NOTICES = 10


def find_runs(root: Path) -> Iterator[Path]:
    """Folders at or below ``root`` that hold a run, in the order of their names."""
    for folder, subfolders, files in os.walk(root):
        subfolders.sort()
        if fnmatch.filter(files, EVENTS):
            yield Path(folder)


def get_last(data: RunData, name: str) -> float | None:
    _, values = data.scalars(name)
    return float(values[-1]) if len(values) else None


def describe_run(data: RunData, name: str, now: float) -> tuple[str, ...]:
    steps, losses = data.scalars("Loss") if "Loss" in data.names else (np.empty(0), np.empty(0))
    last = data.status.last_wall_time
    return (
        clean(name),
        data.status.state,
        str(int(steps[-1]) + 1) if len(steps) else "0",
        format_number(float(losses[-1])) if len(losses) else "-",
        f"{format_age(now - last)} ago" if last else "-",
    )


def list_runs(root: Path, terminal: Terminal) -> int:
    """Prints one line per run below ``root``; returns how many there are."""
    from cockpit_core.events.data import load

    now = time.time()
    rows = [("run", "state", "steps", "loss", "last record")]
    for path in find_runs(root):
        name = str(path.relative_to(root)) if path != root else path.name
        rows.append(describe_run(load(path), name, now))
    for index, line in enumerate(format_table(rows, "<<>>>")):
        terminal.write(terminal.paint(line, "bold" if index == 0 else rows[index][1]))
    return len(rows) - 1

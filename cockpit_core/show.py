"""A run as text, for people on a remote shell: what ``cockpit ls`` and ``cockpit show`` print."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from cockpit_core.events.data import RunData, load
from cockpit_core.events.reader import find_event_files
from cockpit_core.terminal import Terminal, clean, draw_sparkline, format_age, format_number, format_table

NOTICES = 10  # the latest; a run may have thousands
HEAD = ("", "last", "lowest", "highest", "values", "")


def find_runs(root: Path) -> Iterator[Path]:
    """Folders at or below ``root`` that hold a run, in the order of their names."""
    for folder, subfolders, _ in os.walk(root):
        subfolders.sort()
        if find_event_files(folder):
            yield Path(folder)


def list_runs(root: Path, terminal: Terminal) -> int:
    """Prints one line per run below ``root``; returns how many there are."""
    now = time.time()
    rows: list[tuple[str, ...]] = [("run", "state", "step", "loss", "last record")]
    for path in find_runs(root):
        name = str(path.relative_to(root)) if path != root else path.resolve().name
        rows.append(describe_run(load(path), name, now))
    if len(rows) > 1:
        for row, line in zip(rows, format_table(rows, "<<>>>"), strict=True):
            terminal.write(terminal.paint(line, "bold" if row is rows[0] else row[1]))
    return len(rows) - 1


def describe_run(data: RunData, name: str, now: float) -> tuple[str, ...]:
    steps, losses = get_values(data, "Loss")
    last = data.last_wall_time
    return (
        clean(name),
        data.status,
        str(steps[-1]) if len(steps) else "-",
        format_number(float(losses[-1])) if len(losses) else "-",
        f"{format_age(now - last)} ago" if last else "-",
    )


def get_values(data: RunData, name: str, layer: str | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Steps and values; empty where the run has none."""
    try:
        return data.scalars(name, layer)
    except KeyError:
        return np.empty(0, np.int64), np.empty(0)


def show_run(path: Path, terminal: Terminal, quantity: str | None = None) -> None:
    """Prints everything the run measured, one line each; with ``quantity``, that one layer by layer."""
    data = load(path)
    show_headline(data, path, terminal)
    terminal.write()
    if quantity is None:
        rows = [describe_curve(name.removeprefix("log/"), get_values(data, name)[1], terminal) for name in data.names]
    else:
        rows = [describe_curve("network", get_values(data, quantity)[1], terminal)]
        rows += [describe_curve(layer, get_values(data, quantity, layer)[1], terminal) for layer in data.layers]
    table = [HEAD, *filter(None, rows)]
    if len(table) == 1:
        known = f"; there are {', '.join(map(clean, data.names))}" if data.names else ""
        terminal.write(f"no values{'' if quantity is None else ' of ' + clean(quantity)} yet{known}")
    for row, line in zip(table, format_table(table, "<>>>><"), strict=True):
        terminal.write(terminal.paint(line, "bold") if row is HEAD else line)
    if quantity is None:
        show_asides(data, terminal)


def show_headline(data: RunData, path: Path, terminal: Terminal) -> None:
    header = data.header
    steps, _ = get_values(data, "Loss")
    facts = [terminal.paint(data.status, data.status)]
    if len(steps):
        facts.append(f"step {steps[-1]}")
    if data.last_wall_time:
        facts.append(f"{format_age(time.time() - data.last_wall_time)} ago")
    if header.model:
        facts.append(f"{clean(header.model)}, {header.num_parameters:,.0f} parameters")
    facts += [clean(optimizer.name) for optimizer in header.optimizers]
    if header.batch_size:
        facts.append(f"batch {header.batch_size}")
    terminal.write(f"{terminal.paint(clean(header.name or str(path)), 'bold')}  " + " | ".join(facts))
    if data.error:
        terminal.write(terminal.paint(clean(data.error), "failed"))


def describe_curve(name: str, values: np.ndarray, terminal: Terminal) -> tuple[str, ...] | None:
    if not len(values):
        return None
    finite = values[np.isfinite(values)]
    ends = (finite.min(), finite.max()) if len(finite) else (np.nan, np.nan)
    numbers = (format_number(float(value)) for value in (values[-1], *ends))
    return (clean(name), *numbers, str(len(values)), draw_sparkline(values, terminal))


def show_asides(data: RunData, terminal: Terminal) -> None:
    """Histograms cannot be drawn here; that they exist can be said. Then what the user should look at."""
    heavy = [(name, len(data.histogram_steps(name))) for name in data.names if data.histogram_steps(name)]
    lines = [f"histograms: {clean(name)} at {count} steps" for name, count in heavy]
    if data.broken:
        lines.append(f"{data.broken} damaged records were skipped")
    if len(data.notices) > NOTICES:
        lines.append(f"{len(data.notices) - NOTICES} earlier notices are not shown")
    for notice in data.notices[-NOTICES:]:
        where = " ".join(filter(None, (notice.quantity, notice.layer)))
        lines.append(clean(f"step {notice.step}: {where + ': ' if where else ''}{notice.message}"))
    if lines:
        terminal.write()
    for line in lines:
        terminal.write(line)

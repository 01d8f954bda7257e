"""A run as text, for people on a remote shell: what ``cockpit ls`` and ``cockpit show`` print."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from cockpit_core.events.data import RunData, get_values, load
from cockpit_core.events.reader import find_event_files
from cockpit_core.events.table import MissingValue
from cockpit_core.report.findings import known_findings, name_worst, show_findings
from cockpit_core.report.terminal import (
    Terminal,
    choose_title,
    clean,
    draw_sparkline,
    fit_sparkline,
    format_age,
    format_number,
    format_table,
    wrap,
)

FINDINGS = 4  # which column of the list
NOTICES = 10  # the latest; a run may have thousands
HEAD = ("", "last", "lowest", "highest", "values")
COURSE = "from first to last"


def find_runs(root: Path) -> Iterator[Path]:
    """Folders at or below ``root`` that hold a run, in the order of their names."""
    for folder, subfolders, _ in os.walk(root):
        subfolders.sort()
        if find_event_files(folder):
            yield Path(folder)


def list_runs(root: Path, terminal: Terminal) -> int:
    """Prints one line per run below ``root``; returns how many there are."""
    now = time.time()
    rows: list[tuple[str, ...]] = [("run", "state", "step", "loss", "findings", "last record")]
    losses: list[np.ndarray] = []
    for path in find_runs(root):
        data = load(path)
        name = str(path.relative_to(root)) if path != root else path.resolve().name
        rows.append(describe_run(data, name, now))
        losses.append(get_values(data, "Loss")[1])
    if fit_sparkline(terminal, rows) == 0:
        rows = [
            (*row[:FINDINGS], "", *row[FINDINGS + 1 :]) for row in rows
        ]  # what does not fit is in `cockpit diagnose`
    if len(rows) > 1:
        width = fit_sparkline(terminal, rows)
        title = choose_title(width, f"loss {COURSE}", "loss")
        at = max(len(row[0]) for row in rows) + 2  # where the states stand
        for row, line, values in zip(rows, format_table(rows, "<<>><>"), [None, *losses], strict=True):
            if values is None:
                terminal.write(terminal.paint(f"{line}  {title}".rstrip(), "bold"))
            else:
                state = terminal.paint(row[1], row[1])
                course = draw_sparkline(values, terminal, width)
                terminal.write(f"{line[:at]}{state}{line[at + len(row[1]) :]}  {course}".rstrip())
    return len(rows) - 1


def describe_run(data: RunData, name: str, now: float) -> tuple[str, ...]:
    steps, losses = get_values(data, "Loss")
    last = data.last_wall_time
    return (
        clean(name),
        data.status,
        str(steps[-1]) if len(steps) else "-",
        format_number(float(losses[-1])) if len(losses) else "-",
        clean(name_worst(known_findings(data))),
        f"{format_age(now - last)} ago" if last else "-",
    )


def show_run(path: Path, terminal: Terminal, quantity: str | None = None) -> None:
    """Prints everything the run measured, one line each; with ``quantity``, that one layer by layer."""
    data = load(path)
    show_headline(data, path, terminal)
    if quantity is None:
        show_findings(known_findings(data), terminal)
    terminal.write()
    if quantity is None:
        curves = [(name.removeprefix("log/"), get_values(data, name)[1]) for name in data.names]
    else:
        layered = [(layer, get_values(data, quantity, layer)[1]) for layer in data.layers]
        curves = [("network", get_values(data, quantity)[1]), *layered]
    curves = [(name, values) for name, values in curves if len(values)]
    if curves:
        show_curves(curves, terminal)
    else:
        known = f"; there are {', '.join(map(clean, data.names))}" if data.names else ""
        known = known or ("" if data.table.end else "; they come with the first optimizer step")
        terminal.write(f"no values{'' if quantity is None else ' of ' + clean(quantity)} yet{known}")
    if quantity is None:
        show_asides(data, terminal)


def show_curves(curves: list[tuple[str, np.ndarray]], terminal: Terminal) -> None:
    rows = [HEAD, *(describe_curve(name, values) for name, values in curves)]
    width = fit_sparkline(terminal, rows)
    head, *lines = format_table(rows, "<>>>>")
    terminal.write(terminal.paint(f"{head}  {choose_title(width, COURSE, 'course')}".rstrip(), "bold"))
    for line, (_, values) in zip(lines, curves, strict=True):
        terminal.write(f"{line}  {draw_sparkline(values, terminal, width)}".rstrip())


def show_headline(data: RunData, path: Path, terminal: Terminal) -> None:
    header = data.header
    steps, _ = get_values(data, "Loss")
    facts = [terminal.paint(data.status, data.status)]
    if len(steps):
        facts.append(f"step {steps[-1]}")
    if data.last_wall_time:
        facts.append(f"{format_age(time.time() - data.last_wall_time)} ago")
    terminal.write(f"{terminal.paint(clean(header.name or str(path)), 'bold')}  " + " | ".join(facts))
    setting = [f"{clean(header.model)}, {header.num_parameters:,.0f} parameters"] if header.model else []
    setting += [clean(optimizer.name) for optimizer in header.optimizers]
    if header.batch_size:
        setting.append(f"batch {header.batch_size}")
    if setting:
        terminal.write(terminal.paint(" | ".join(setting), "dim"))
    if data.error:
        terminal.write(terminal.paint(clean(data.error), "failed"))


def describe_curve(name: str, values: np.ndarray) -> tuple[str, ...]:
    finite = values[np.isfinite(values)]
    ends = (finite.min(), finite.max()) if len(finite) else (np.nan, np.nan)
    numbers = (format_number(float(value)) for value in (values[-1], *ends))
    return (clean(name), *numbers, str(len(values)))


def describe_missing(data: RunData) -> list[str]:
    """Quantities without a value at some steps, each with its last reason."""
    by_name: dict[str, list[MissingValue]] = {}
    for item in data.missing:
        by_name.setdefault(item.name, []).append(item)
    return [
        f"{name} has no value at {len(items)} {'steps' if len(items) > 1 else 'step'}: {items[-1].reason}"
        for name, items in by_name.items()
    ]


def show_asides(data: RunData, terminal: Terminal) -> None:
    """Histograms cannot be drawn here, so their number is given. Then what the user should look at."""
    heavy = [(name, len(data.histogram_steps(name))) for name in data.names if data.histogram_steps(name)]
    lines = [f"histograms of {clean(name)} at {count} steps: see the report" for name, count in heavy]
    lines += [clean(line) for line in describe_missing(data)]
    if data.broken:
        lines.append(f"{data.broken} damaged records were skipped")
    earlier = len(data.notices) - NOTICES
    if earlier > 0:
        lines.append(f"{earlier} earlier {'notices are' if earlier > 1 else 'notice is'} not shown")
    for notice in data.notices[-NOTICES:]:
        where = " ".join(filter(None, (notice.quantity, notice.layer)))
        lines.append(clean(f"step {notice.step}: {where + ': ' if where else ''}{notice.message}"))
    if lines:
        terminal.write()
    for line in lines:
        for part in wrap(line, terminal):
            terminal.write(terminal.paint(part, "dim") if line.startswith("histograms of") else part)

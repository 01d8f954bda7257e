"""The numbers of a run as CSV and as JSON, complete, with nothing but the standard library."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from cockpit_core.events.data import RunData
from cockpit_core.events.pandas_table import check_cells
from cockpit_core.events.table import KINDS
from cockpit_core.report.findings import known_findings
from cockpit_core.schema import wire
from cockpit_core.schema.limits import MAX_SHOWN

Loaded = Sequence[tuple[str, RunData]]
MOST_BYTES = 128 * 1024 * 1024  # of all histograms in a JSON file, at eight for each number
MOST_FAILURES = 1_000_000  # after this many unreadable histograms no more are tried
_FIXED = ["run", "kind", "seq", "step", "time", "wall_time", "epoch", "triggered"]


def make_csv(loaded: Loaded) -> str:
    """One line per record; one column per name, layer-wise values as ``name[layer]``. An empty cell has no value."""
    tables = [(name, data, dict(read_columns(data))) for name, data in loaded]
    titles = list(dict.fromkeys(title for _, _, table in tables for title in table))
    check_cells(sum(len(data.table) for data in (data for _, data, _ in tables)), len(titles) + len(_FIXED))
    output = io.StringIO()
    writer = csv.writer(output, lineterminator="\n")
    writer.writerow(_FIXED + [guard_cell(title) for title in titles])
    for name, data, table in tables:
        rows = data.rows
        columns = [table.get(title, {}) for title in titles]
        for i in range(len(rows.seq)):
            epoch = "" if math.isnan(rows.epoch[i]) else repr(float(rows.epoch[i]))
            fixed = [guard_cell(name), KINDS[rows.kind[i]], int(rows.seq[i]), int(rows.step[i])]
            fixed += [repr(float(rows.time[i])), repr(float(rows.wall_time[i])), epoch, int(rows.triggered[i])]
            writer.writerow(fixed + [repr(column[i]) if i in column else "" for column in columns])
    return output.getvalue()


def guard_cell(text: str) -> str:
    """A name that a spreadsheet would run as a formula gets a quote in front; line breaks would break readers."""
    text = "".join(c if c.isprintable() else " " for c in text)
    return f"'{text}" if text.lstrip().startswith(("=", "+", "-", "@")) else text


def read_columns(data: RunData) -> Iterator[tuple[str, dict[int, float]]]:
    """Title and ``{row: value}`` of everything that a run holds. Alpha stands in the row of the step it describes."""
    table, rows = data.table, data.rows
    for name, column in table.columns.items():
        yield name, _pair(*column.get())
    place = {int(rows.step[row]): int(row) for row in np.flatnonzero(rows.kind == KINDS.index("step"))}
    alphas = {place[fit.step]: fit.alpha for fit in data.alphas if fit.alpha is not None and fit.step in place}
    if alphas and "Alpha" not in table.columns:
        yield "Alpha", alphas
    layer_names = list(table.layer_index)
    for name, matrix in table.layer_columns.items():
        for index in matrix.layers():
            layer = layer_names[index]
            values = _pair(*matrix.get(index))
            if values:
                yield f"{name}[{layer}]", values


def _pair(rows: np.ndarray, values: np.ndarray) -> dict[int, float]:
    return dict(zip(rows.tolist(), values.tolist(), strict=True))


def make_json(loaded: Loaded, room: int = MOST_BYTES) -> tuple[str, str]:
    """Everything, histograms too, and what was left out ("" = nothing).

    Numbers that JSON does not know are the texts "NaN", "Infinity" and "-Infinity".
    """
    budget = Room(room)
    runs = [_as_json(name, data, budget) for name, data in loaded]
    text = json.dumps({"format": "cockpit-report", "version": 1, "runs": runs})
    most = f"one may take {MAX_SHOWN // 2**20} MiB, all together {room // 2**20} MiB"
    words = f"{budget.refused:,} histograms are left out: {most}, at 8 bytes for each number."
    return text, words if budget.refused else ""


class Room:
    """How many bytes of histograms a file may still hold, and how many histograms were refused."""

    def __init__(self, most: int) -> None:
        self.left, self.refused, self.failures = most, 0, 0

    def take(self, size: int) -> bool:
        fits = size <= min(self.left, MAX_SHOWN)
        self.left -= size if fits else 0
        self.refused += not fits
        return fits


def _as_json(name: str, data: RunData, room: Room) -> dict[str, Any]:
    rows = data.rows
    columns = [
        {"name": title, "rows": list(values), "values": _clean(list(values.values()))}
        for title, values in read_columns(data)
    ]
    fixed = {field: _clean(getattr(rows, field).tolist()) for field in ("seq", "step", "time", "wall_time", "epoch")}
    kinds = [KINDS[kind] for kind in rows.kind]
    quantities = [q for q in data.names if data.histogram_steps(q)]
    return {
        "name": name,
        "status": data.status,
        "error": data.error,
        "broken": data.broken,
        "header": _clean(dataclasses.asdict(data.header)),
        "rows": {**fixed, "kind": kinds, "triggered": [bool(x) for x in rows.triggered]},
        "columns": columns,
        "alphas": [_clean(dataclasses.asdict(fit)) for fit in data.alphas],
        "notices": [dataclasses.asdict(notice) for notice in data.notices],
        "findings": [_clean(dataclasses.asdict(finding)) for finding in known_findings(data)],
        "missing": [missing._asdict() for missing in data.missing],
        "histograms": [h for quantity in quantities for h in _histograms(data, quantity, room)],
    }


def _histograms(data: RunData, quantity: str, room: Room) -> Iterator[dict[str, Any]]:
    for step in data.histogram_steps(quantity):
        for layer in (None, *data.layers):
            try:
                blob = data.histogram_bytes(quantity, step, layer)
                if room.take(wire.measure_histogram(blob)):
                    yield _clean(dataclasses.asdict(wire.decode_histogram(blob)))
            except (KeyError, ValueError, OSError):
                room.failures += 1  # this layer has none, or it is damaged
                if room.failures > MOST_FAILURES:
                    return


def _clean(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return _clean(value.tolist())
    if isinstance(value, dict):
        return {str(key): _clean(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value

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

from cockpit_core.diagnosis.command import known_findings
from cockpit_core.events.data import RunData
from cockpit_core.events.table import KINDS

Loaded = Sequence[tuple[str, RunData]]
_FIXED = ["run", "kind", "seq", "step", "time", "wall_time", "epoch", "triggered"]


def make_csv(loaded: Loaded) -> str:
    """One line per record; one column per name, layer-wise values as ``name[layer]``. An empty cell has no value."""
    tables = [(name, data, dict(read_columns(data))) for name, data in loaded]
    titles = list(dict.fromkeys(title for _, _, table in tables for title in table))
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
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def read_columns(data: RunData) -> Iterator[tuple[str, dict[int, float]]]:
    """Title and ``{row: value}`` of everything that a run holds. Alpha stands in the row of the step it describes."""
    table, rows = data.table, data.rows
    for name, column in table.columns.items():
        yield name, _pair(*column.get())
    place = {int(rows.step[row]): int(row) for row in np.flatnonzero(rows.kind == KINDS.index("step"))}
    alphas = {place[fit.step]: fit.alpha for fit in data.alphas if fit.alpha is not None and fit.step in place}
    if alphas and "Alpha" not in table.columns:
        yield "Alpha", alphas
    for name, matrix in table.layer_columns.items():
        for layer, index in table.layer_index.items():
            values = _pair(*matrix.get(index))
            if values:
                yield f"{name}[{layer}]", values


def _pair(rows: np.ndarray, values: np.ndarray) -> dict[int, float]:
    return dict(zip(rows.tolist(), values.tolist(), strict=True))


def make_json(loaded: Loaded) -> str:
    """Everything, histograms too. Numbers that JSON does not know are the texts "NaN", "Infinity" and "-Infinity"."""
    return json.dumps({"format": "cockpit-report", "version": 1, "runs": [_as_json(*run) for run in loaded]})


def _as_json(name: str, data: RunData) -> dict[str, Any]:
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
        "histograms": [h for quantity in quantities for h in _histograms(data, quantity)],
    }


def _histograms(data: RunData, quantity: str) -> Iterator[dict[str, Any]]:
    for step in data.histogram_steps(quantity):
        for layer in (None, *data.layers):
            try:
                histogram = data.histogram(quantity, step, layer)
            except (KeyError, ValueError):
                continue  # this layer has none, or it is damaged
            yield _clean(dataclasses.asdict(histogram))


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

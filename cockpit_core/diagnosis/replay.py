"""The findings of a finished log: the same judge, fed row by row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from cockpit_core.diagnosis.history import SIGNAL, Observation
from cockpit_core.diagnosis.judge import Judge, rank
from cockpit_core.events.data import RunData, load
from cockpit_core.events.table import KINDS, Table
from cockpit_core.foundation.records import Finding, Record

LOGGED = "log/"
_TINY = float(np.finfo(np.float32).tiny)
LAYERED = ("GradNorm", "UpdateSize", "ParamNorm")  # what rules look at layer by layer


def diagnose(path: str | Path | RunData) -> list[Finding]:
    """What is wrong with the run in ``path``, worst first; an empty list if nothing is.

    Symptoms that a cause explains are named in its ``explains``. Retracted findings stay, at the end, marked.
    """
    return rank(judge_run(path if isinstance(path, RunData) else load(path)).found.values())


def judge_run(data: RunData) -> Judge:
    """A judge that has seen the whole run."""
    judge = Judge()
    judge.know(data.header)
    feed(judge, data.table)
    return judge


def feed(judge: Judge, table: Table, before: int | None = None) -> None:
    """Let the judge see all records, or those of steps before one."""
    for kind, seen in replay(table):
        if before is not None and seen.step >= before:
            continue
        if kind == "start":
            judge.start(dict(seen.scalars), seen.step, seen.generation)
        elif kind == "log":
            judge.note(seen.step, seen.scalars)
        elif kind == "end":
            judge.finish(seen)
        else:
            judge.see(seen)


def replay(table: Table) -> Iterator[tuple[str, Observation]]:
    """Records that start or end a run, measure a step or hold what the user logged, in order."""
    rows = table.rows()
    columns = {name: dict(zip(*map(np.ndarray.tolist, column.get()), strict=True)) for name, column in table.columns.items()
               if not name.startswith(("cost/", "error/"))}  # fmt: skip
    alphas = {seq: fit.alpha for seq, fit in table.alphas.between(0, table.next_seq) if fit.alpha is not None}
    layers = {name: _rows_of(table, name) for name in LAYERED if name in table.layer_columns}
    generations = table.generations()
    for row, kind in enumerate(rows.kind.tolist()):
        scalars = {name: values[row] for name, values in columns.items() if row in values}
        if table.end is not None and KINDS[kind] == "end" and table.end.status == "finished":
            scalars[SIGNAL + "finished"] = 1.0  # which older versions did not write
        if KINDS[kind] == "log":
            yield "log", Observation(int(rows.step[row]), plain_names(scalars))
            continue
        seq = int(rows.seq[row])
        if seq in alphas:
            scalars["Alpha"] = float(alphas[seq])
        vectors = {name: by_row[row] for name, by_row in layers.items() if row in by_row}
        size = table.header.batch_size if table.header is not None else 0
        yield KINDS[kind], Observation(int(rows.step[row]), scalars, vectors, size, generations[row])


def plain_names(scalars: Mapping[str, float]) -> dict[str, float]:
    """What the user logged, by the user's own names."""
    return {name.removeprefix(LOGGED): value for name, value in scalars.items() if name.startswith(LOGGED)}


def _rows_of(table: Table, name: str) -> dict[int, np.ndarray]:
    """{row: one number per layer of the header}, NaN where a layer has none."""
    vectors: dict[int, np.ndarray] = {}
    names = [layer.name for layer in table.header.layers] if table.header else []
    for place, layer in enumerate(names):
        rows, values = table.layer_columns[name].get(table.layer_index[layer])
        for row, value in zip(rows.tolist(), values.tolist(), strict=True):
            if row not in vectors:
                vectors[row] = np.full(len(names), np.nan)
            vectors[row][place] = value
    return {row: rounded(vector) for row, vector in vectors.items()}


def rounded(vector: np.ndarray) -> np.ndarray:
    """To 32 bits where they suffice: a log keeps no more of most vectors, and both ways must see the same numbers."""
    with np.errstate(over="ignore"):
        narrow = vector.astype(np.float32).astype(np.float64)
    return np.where(np.isfinite(narrow) & (np.abs(narrow) >= _TINY), narrow, vector)


def observe(record: Record, batch_size: int) -> Observation:
    """A record that is about to be written, as the log will give it back: layers in 32 bits."""
    scalars = dict(record.scalars)
    known = [fit.alpha for fit in record.alphas if fit.alpha is not None]
    if known:
        scalars["Alpha"] = float(known[-1])
    layers = {}
    for name in LAYERED:
        if name in record.layers:
            vector = np.asarray(record.layers[name], dtype=np.float64)
            absent = record.layers_missing.get(name)
            layers[name] = vector if absent is None or not absent.any() else np.where(absent, np.nan, vector)
    if len({len(vector) for vector in layers.values()}) == 1:
        layers = dict(zip(layers, rounded(np.stack(list(layers.values()))), strict=True))
    else:
        layers = {name: rounded(vector) for name, vector in layers.items()}
    return Observation(record.step, scalars, layers, batch_size, record.generation)

"""A run as a pandas table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cockpit_core.events.table import KINDS

if TYPE_CHECKING:
    import pandas

    from cockpit_core.events.data import RunData


def make_frame(data: RunData) -> pandas.DataFrame:
    """Indexed by ``seq``; the first columns are step, time, wall_time, epoch, triggered and kind."""
    try:
        import pandas
    except ImportError:
        raise ImportError("to_pandas() needs pandas: pip install torch-cockpit[pandas]") from None
    rows = data.rows
    columns: dict[str, np.ndarray] = {
        "step": rows.step,
        "time": rows.time,
        "wall_time": rows.wall_time,
        "epoch": rows.epoch,
        "triggered": rows.triggered.astype(bool),
        "kind": np.array(KINDS)[rows.kind] if rows.kind.size else np.array([], dtype=str),
    }
    table = data.table
    for name, column in table.columns.items():
        columns[name] = _spread(len(table), *column.get())
    columns["Alpha"] = _spread_alpha(data)
    for name, matrix in table.layer_columns.items():
        for layer, index in table.layer_index.items():
            columns[f"{name}[{layer}]"] = _spread(len(table), *matrix.get(index))
    return pandas.DataFrame(columns, index=pandas.Index(rows.seq, name="seq"))


def _spread(count: int, rows: np.ndarray, values: np.ndarray) -> np.ndarray:
    full = np.full(count, np.nan)
    full[rows] = values
    return full


def _spread_alpha(data: RunData) -> np.ndarray:
    """Alpha stands in the row of the step that it describes, not of the record that it travelled in."""
    rows = data.rows
    full = np.full(rows.seq.size, np.nan)
    place = {int(rows.step[row]): row for row in np.flatnonzero(rows.kind == KINDS.index("step"))}
    for fit in data.alphas:
        if fit.alpha is not None and fit.step in place:
            full[place[fit.step]] = fit.alpha
    return full

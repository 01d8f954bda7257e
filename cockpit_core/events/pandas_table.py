"""A run as a pandas table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cockpit_core.events.table import KINDS

MOST_CELLS = 500_000_000  # 4 GB

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
    table = data.table
    layered = {name: matrix.layers() for name, matrix in table.layer_columns.items()}
    check_cells(len(table), len(table.columns) + sum(map(len, layered.values())))
    columns: dict[str, np.ndarray] = {
        "step": rows.step,
        "time": rows.time,
        "wall_time": rows.wall_time,
        "epoch": rows.epoch,
        "triggered": rows.triggered.astype(bool),
        "kind": np.array(KINDS)[rows.kind] if rows.kind.size else np.array([], dtype=str),
    }
    for name, column in table.columns.items():
        columns.setdefault(name, _spread(len(table), *column.get()))
    columns.setdefault("Alpha", _spread_alpha(data))
    layer_names = list(table.layer_index)
    for name, matrix in table.layer_columns.items():
        for index in layered[name]:
            layer = layer_names[index]
            columns[f"{name}[{layer}]"] = _spread(len(table), *matrix.get(index))
    return pandas.DataFrame(columns, index=pandas.Index(rows.seq, name="seq"))


def check_cells(rows: int, columns: int) -> None:
    """Raises ValueError where a table with a cell for each row and column is too large to be made.

    A log holds the values that exist. A table also has the empty cells, which may be far more.
    """
    if rows * columns > MOST_CELLS:
        raise ValueError(
            f"A table of {rows:,} rows and {columns:,} columns is too large ({MOST_CELLS:,} cells are the most). "
            "Read single curves with scalars(name, layer), or write the report as HTML or JSON."
        )


def _spread(count: int, rows: np.ndarray, values: np.ndarray) -> np.ndarray:
    full = np.full(count, np.nan)
    full[rows] = values
    return full


def _spread_alpha(data: RunData) -> np.ndarray:
    """Alpha stands in the row of the step that it describes, not of the record that carried it."""
    rows = data.rows
    full = np.full(rows.seq.size, np.nan)
    place = {int(rows.step[row]): row for row in np.flatnonzero(rows.kind == KINDS.index("step"))}
    for fit in data.alphas:
        if fit.alpha is not None and fit.step in place:
            full[place[fit.step]] = fit.alpha
    return full

"""Reading a run back: ``load(path)`` and what it returns. Needs neither torch nor TensorBoard."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cockpit_core.events.table import MissingValue, StoredRows
from cockpit_core.events.taking import Taking
from cockpit_core.events.words import check_names, check_step, list_names, plain
from cockpit_core.foundation import records
from cockpit_core.schema import wire

if TYPE_CHECKING:
    import pandas


QUIET = 60.0  # seconds without a sign of life before a run counts as crashed


class Estimates(NamedTuple):
    """How far the values of one name may be off, and how each was estimated."""

    steps: np.ndarray
    errors: np.ndarray
    methods: list[str]


def load(path: str | os.PathLike[str]) -> RunData:
    """The run in a directory (or in one event file); may still be growing."""
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"load() takes the log directory of a run, a text or a path, not {path!r:.100}")
    return RunData(Path(path))


class RunData(Taking):
    """The columns of one run.

    ``refresh()`` reads what has been appended since, and costs in proportion to that. Histograms stay on disk until
    they are asked for. Damaged records are skipped and counted in ``broken``. A resumed run that went back to a
    checkpoint replaces what came after it.
    """

    # ---- what there is ----

    @property
    def header(self) -> records.Header:
        if self.table.header is None:
            return records.Header(run_id="", name=self.path.name if self.path else "", created=0.0)
        return self.table.header

    @property
    def layers(self) -> list[str]:
        return [layer.name for layer in self.header.layers]

    @property
    def names(self) -> list[str]:
        """Everything with at least one value: the quantities in the header's order, then the rest in order of
        arrival."""
        known = {name for name, column in self.table.columns.items() if column.rows and not _is_aside(name)}
        known |= {name for name, column in self.table.layer_columns.items() if column}
        known |= set(self._heavy.names)
        if any(fit.alpha is not None for fit in self.table.alphas):
            known.add("Alpha")
        first = [quantity.name for quantity in self.header.quantities if quantity.name in known]
        return list(dict.fromkeys(first + [name for name in (*self.table.columns, *sorted(known)) if name in known]))

    @property
    def rows(self) -> StoredRows:
        """seq, step, time, wall_time, epoch, triggered and kind of every record."""
        return self.table.rows()

    def rows_since(self, seq: int) -> StoredRows:
        """The rows of records with at least this number: what is new to a host that knows all before."""
        return self.table.rows(self.table.find_row(seq))

    @property
    def alphas(self) -> list[records.AlphaFit]:
        return list(self.table.alphas)

    @property
    def notices(self) -> list[records.Notice]:
        return list(self.table.notices)

    @property
    def findings(self) -> list[records.Finding]:
        """What the log says is wrong, as it was diagnosed live: the latest message of each name."""
        return list({finding.name: finding for finding in self.table.findings}.values())

    @property
    def missing(self) -> list[MissingValue]:
        return list(self.table.missing)

    @property
    def estimates(self) -> dict[str, Estimates]:
        estimates = {}
        for name, column in self.table.columns.items():
            if name.startswith("error/") and column.rows:
                rows, errors = column.get()
                estimates[name.removeprefix("error/")] = Estimates(self._steps(rows), errors, list(column.texts))
        return estimates

    @property
    def broken(self) -> int:
        """How many damaged records were skipped."""
        return self._fed_broken + sum(file.broken for file in self._files.values())

    @property
    def expected(self) -> int:
        """How many records were written, as far as is known: more than ``received`` means that some are missing."""
        return self.table.next_seq

    @property
    def received(self) -> int:
        return self.table.accepted

    @property
    def error(self) -> str:
        return self.table.end.error if self.table.end else ""

    @property
    def last_wall_time(self) -> float:
        rows = self.table.rows(max(0, len(self.table) - 1))
        return max(self._last_event, float(rows.wall_time[0]) if rows.wall_time.size else 0.0)

    @property
    def status(self) -> str:
        """ "waiting", "running", "finished", "failed", "stopped" or "crashed" (no end, and silent for too long)."""
        if self.table.end is not None:
            return plain(self.table.end.status) or "finished"
        if self._is_silent():
            return "crashed"
        return "running" if self.table.steps_taken else "waiting"

    def _is_silent(self) -> bool:
        """The quick answer first: a live run is asked several times a second."""
        now = time.time()
        if now - self.last_wall_time <= QUIET:
            return False
        return now - max(self.last_wall_time, self._modified()) > self._patience()

    def _modified(self) -> float:
        times = [0.0]
        for path in self._files:
            try:
                times.append(path.stat().st_mtime)
            except OSError:
                continue
        return max(times)

    def _patience(self) -> float:
        clock = self.table.rows(max(0, len(self.table) - 200)).wall_time
        clock = clock[np.abs(clock) < 1e12]  # damaged ones may be anything
        return max(QUIET, 20 * float(np.median(np.diff(clock)))) if clock.size > 1 else QUIET

    # ---- values ----

    def scalars(self, name: str, layer: str | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Steps and values of one quantity; with ``layer``, those of one parameter tensor."""
        check_names(name, layer)
        if layer is not None:
            return self._layer_scalars(name, layer)
        if name == "Alpha" and name not in self.table.columns:
            fits = [fit for fit in self.alphas if fit.alpha is not None]
            steps = np.array([fit.step for fit in fits], dtype=np.int64)
            return steps, np.array([fit.alpha for fit in fits], dtype=np.float64)
        column = self.table.columns.get(name) or self.table.columns.get("log/" + name)
        if column is None:
            if any(quantity.name == name for quantity in self.header.quantities):  # planned, no value yet
                return np.empty(0, np.int64), np.empty(0)
            raise KeyError(f"no values called {name!r}; there are {list_names(self.names)}")
        rows, values = column.get()
        return self._steps(rows), values

    def _layer_scalars(self, name: str, layer: str) -> tuple[np.ndarray, np.ndarray]:
        index = self.table.layer_index.get(layer)
        if index is None:
            raise KeyError(f"no layer called {layer!r}; there are {list_names(self.layers)}")
        if name not in self.table.layer_columns:
            raise KeyError(f"no layer-wise values called {name!r}; there are {list_names(self.table.layer_columns)}")
        rows, values = self.table.layer_columns[name].get(index)
        return self._steps(rows), values

    def _steps(self, rows: np.ndarray) -> np.ndarray:
        return self.table.steps()[rows]

    # ---- histograms ----

    @property
    def histogram_names(self) -> list[str]:
        return self._heavy.names

    def histogram_steps(self, name: str) -> list[int]:
        return self._heavy.steps(name)

    def histogram(self, name: str, step: int = -1, layer: str | None = None) -> records.Histogram:
        """The histogram of one step (-1: the last one), of the network or of one layer."""
        return wire.decode_histogram(self.histogram_bytes(name, step, layer))

    def histogram_bytes(self, name: str, step: int = -1, layer: str | None = None) -> bytes:
        """The same as it is stored, for hosts that pass it on."""
        step = check_step(step)
        check_names(name, layer)
        if name not in self._heavy.names:
            raise KeyError(f"no histograms called {name!r}; there are {list_names(self._heavy.names)}")
        entry = self._heavy.find(name, step)
        if entry is None:
            nearest = sorted(sorted(self.histogram_steps(name), key=lambda x: abs(x - step))[:4])
            raise KeyError(f"no {name} at step {step}; the nearest are at {list_names(map(str, nearest))}")
        place = self._find_layer(layer) if layer else -1
        blob = entry.fetch(place + 1)
        if not blob:
            raise KeyError(f"{layer!r} has no {name} at step {entry.step}")
        return blob

    def _find_layer(self, layer: str) -> int:
        """Its place in the header."""
        if layer not in self.table.layer_places:
            raise KeyError(f"no layer called {layer!r}; there are {list_names(self.layers)}")
        return self.table.layer_places[layer]

    def parameters(self, step: int = -1) -> dict[str, np.ndarray]:
        """What the quantity Parameters stored: the parameters before that step, by layer."""
        counts, step = {}, check_step(step)
        for name in self.layers:
            try:
                counts[name] = self.histogram("Parameters", step, name).counts
            except KeyError:
                if "Parameters" not in self.histogram_names:
                    raise
        return counts

    def to_pandas(self) -> pandas.DataFrame:
        """One row per record, one column per name; layer-wise values as ``name[layer]``."""
        from cockpit_core.events.pandas_table import make_frame

        return make_frame(self)


def get_values(data: RunData, name: str, layer: str | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Steps and values; empty where the run has none."""
    try:
        return data.scalars(name, layer)
    except KeyError:
        return np.empty(0, np.int64), np.empty(0)


def _is_aside(name: str) -> bool:
    return name.startswith(("cost/", "error/", "signal/"))

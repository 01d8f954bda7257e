"""What the user chose in a cockpit, kept for the next one: re-running a cell must not forget it.

The same runs get all of it back. Another run that was begun by the same cell (the usual case: a new log directory at
each try) gets what is not about one particular run.
"""

from __future__ import annotations

from typing import Any

OF_ONE_RUN = ("runs", "filter", "step", "zoom")
_by_runs: dict[tuple[str, ...], dict[str, Any]] = {}
_by_cell: dict[str, dict[str, Any]] = {}


def remember(names: tuple[str, ...], cell: str, choices: dict[str, Any]) -> None:
    _by_runs[names] = dict(choices)
    if cell:
        _by_cell[cell] = {key: value for key, value in choices.items() if key not in OF_ONE_RUN}


def recall(names: tuple[str, ...], cell: str) -> dict[str, Any]:
    return _by_runs.get(names) or _by_cell.get(cell) or {}

"""Where the log of a run goes that a training library starts, and at which step it begins."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cockpit_core.events.reader import find_event_files


def choose_folder(logdir: str | Path | None, parent: str | Path | None, resumes: bool = False) -> Path | None:
    """The user's choice, else ``<parent>/cockpit`` with a number behind it if there is a run already; None: our default.

    Training that resumes from a checkpoint continues in the last of them that holds a run.
    """
    if logdir is not None:
        return Path(logdir)
    if parent is None:
        return None
    base = Path(parent) / "cockpit"
    choices = [base, *(base.with_name(f"cockpit_{k}") for k in range(1, 1000))]
    free = next((k for k, choice in enumerate(choices) if not choice.exists()), 0)
    if resumes and free > 0 and find_event_files(choices[free - 1]):
        return choices[free - 1]
    return choices[free]


def continue_at(step: int, folder: Path | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of ``track`` for a trainer that has done ``step`` steps: it continues in the existing log, at its
    own step, and replaces what the log holds of later steps. What the user has set stays."""
    options = dict(options)
    if step > 0:
        options.setdefault("step", step)
        options.setdefault("resume", folder is not None and bool(find_event_files(folder)))
    return options

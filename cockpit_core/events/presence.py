"""Is a run still being written, by somebody else? Two writers in one folder would replace each other's steps."""

from __future__ import annotations

import errno
import gc
import os
from pathlib import Path

from cockpit_core.events.logfile import find_sign_of_life, writer_of
from cockpit_core.events.resume import read_past
from cockpit_core.foundation.faults import say


def check_nobody_writes(logdir: Path, files: list[Path]) -> None:
    """A run that is still being written cannot be continued: the records of the two would replace each other."""
    signs = {path: find_sign_of_life(path) for path in files}
    if "locked" in signs.values():
        gc.collect()  # a run of this process that nobody holds any more
        signs = {path: find_sign_of_life(path) for path in files}
    for path, sign in signs.items():
        if sign == "locked":
            raise BlockingIOError(errno.EWOULDBLOCK, explain_writer(path), str(logdir))
    last = files[-1] if files else None
    if last is not None and signs[last] == "recent" and not read_past([last]).ended:
        say(
            f"Cockpit: {last} was written to a moment ago, and this file system cannot tell whether its writer still lives. "
            "If it does, end it: two writers replace each other's steps."
        )


def explain_writer(path: Path) -> str:
    host, process = writer_of(path)
    if process == os.getpid():
        return "this log is still being written by another run of this process: call close() on that run first"
    return f"this log is still being written, by process {process} on {host}: end it before you resume, or choose another logdir"


def check_nobody_came_first(mine: Path, now: list[Path], earlier: list[Path]) -> None:
    """Two runs that start in one folder at the same moment both saw it empty: whichever sees the other gives up."""
    for path in now:
        if path != mine and path not in earlier and find_sign_of_life(path) == "locked":
            raise BlockingIOError(errno.EWOULDBLOCK, explain_writer(path), str(path.parent))

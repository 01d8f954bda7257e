"""``write_report``: one file that outlives the run. HTML with the panels inside, or the numbers, or a picture."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from cockpit_core.events.data import RunData, load
from cockpit_core.report.terminal import clean

FORMATS = ("html", "csv", "json", "png", "svg")
LONGEST_NAME = 200  # characters
_log = logging.getLogger(__name__)


class Report(NamedTuple):
    """The file's bytes, in words what was left out for its size ("" = nothing), and the runs that had no values yet."""

    content: bytes
    left_out: str = ""
    without_values: tuple[str, ...] = ()

    @property
    def megabytes(self) -> float:
        return len(self.content) / 1e6


def write_report(
    runs: Sequence[str | Path | RunData] | str | Path | RunData,
    output: str | Path,
    format: str | None = None,
    max_bytes: int = 5_000_000,
) -> Path:
    """Write ``runs`` (log directories, or data already loaded) to ``output``.

    "html" is self-contained and interactive: it opens from disk, offline, and loads nothing. It stays under
    ``max_bytes``: curves are thinned (extremes stay), histograms are left out; the page says which, and so does a
    message of ``logging``. "csv" and "json" hold every value; "png" and "svg" are drawn with matplotlib, without a
    display. Without ``format`` the file's ending says which.
    """
    path = Path(output)
    report = make_report(runs, choose_format(path, format), max_bytes)
    path.write_bytes(report.content)
    if report.left_out:
        words = clean(report.left_out)  # names of the log, on their way to a terminal
        _log.warning("%s (%.1f MB) leaves something out for its size: %s", path, report.megabytes, words)
    return path


def choose_format(path: Path, format: str | None = None) -> str:
    """What to write into a file: what was asked for, or what its ending says; HTML if it says nothing."""
    ending = path.suffix.lstrip(".").lower()
    if format is not None or not ending.isalpha():  # "lr-0.1" has no ending
        return format or "html"
    ending = "html" if ending == "htm" else ending
    if ending not in FORMATS:
        endings = ", ".join(f".{known}" for known in FORMATS)
        raise ValueError(
            f"{path}: a report cannot be written as .{ending}; choose one of {endings}, or name the format."
        )
    return ending


def make_report(
    runs: Sequence[str | Path | RunData] | str | Path | RunData,
    format: str = "html",
    max_bytes: int = 5_000_000,
    below: Callable[[dict[str, RunData]], str] | None = None,
) -> Report:
    """The same before it is written. ``below`` makes markup from the runs, which is put under the panels."""
    if format not in FORMATS:
        raise ValueError(f"There is no report format {format!r}; choose one of {', '.join(FORMATS)}.")
    loaded = [load_run(run) for run in _as_list(runs)]
    if not loaded:
        raise ValueError("A report needs at least one run.")
    empty = tuple(name for name, data in loaded if not data.names)
    written = _write_html(loaded, max_bytes, below) if format == "html" else _WRITERS[format](loaded, max_bytes)
    return Report(*written, empty)


def load_run(run: str | Path | RunData) -> tuple[str, RunData]:
    """The name under which a run is shown, and its data."""
    data = run if isinstance(run, RunData) else load(run)
    name = data.header.name if data.header is not None else ""
    name = name or (Path(run).resolve().name if not isinstance(run, RunData) else "run")
    return name[:LONGEST_NAME], data


def name_uniquely(names: Sequence[str]) -> list[str]:
    """The same names, numbered where two are alike."""
    seen: dict[str, int] = {}
    unique = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        unique.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return unique


def _as_list(runs: Sequence[str | Path | RunData] | str | Path | RunData) -> list[str | Path | RunData]:
    return [runs] if isinstance(runs, (str, Path, RunData)) else list(runs)


Loaded = list[tuple[str, RunData]]


def _write_html(loaded: Loaded, max_bytes: int, below: Callable[[dict[str, RunData]], str] | None) -> tuple[bytes, str]:
    from cockpit_core.report.html import make_html

    names = name_uniquely([name for name, _ in loaded])
    runs = dict(zip(names, (data for _, data in loaded), strict=True))
    return make_html(runs, max_bytes, below(runs) if below is not None else "")


def _write_csv(loaded: Loaded, max_bytes: int) -> tuple[bytes, str]:
    from cockpit_core.report.tables import make_csv

    return make_csv(loaded).encode(), ""


def _write_json(loaded: Loaded, max_bytes: int) -> tuple[bytes, str]:
    from cockpit_core.report.tables import make_json

    text, left_out = make_json(loaded)
    return text.encode(), left_out


def _write_picture(file_format: str) -> Callable[[Loaded, int], tuple[bytes, str]]:
    def write(loaded: Loaded, max_bytes: int) -> tuple[bytes, str]:
        from cockpit_core.report.poster import draw_poster  # needs matplotlib, which those who want a picture have

        return draw_poster([data for _, data in loaded], file_format), ""

    return write


_WRITERS: dict[str, Callable[[Loaded, int], tuple[bytes, str]]] = {
    "csv": _write_csv,
    "json": _write_json,
    "png": _write_picture("png"),
    "svg": _write_picture("svg"),
}

"""What a terminal can show: colour, sparklines, aligned columns, and never an escape sequence from a file."""

from __future__ import annotations

import math
import os
import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import TextIO

import numpy as np

BLOCKS = "▁▂▃▄▅▆▇█"
ASCII_BLOCKS = "_.-~=+*#"
BROKEN = "x"
COLORS = {"running": "32", "finished": "36", "failed": "31", "crashed": "31", "stopped": "33", "bold": "1", "dim": "2"}
_PAINT = re.compile("(\x1b\\[(?:0|" + "|".join(sorted(set(COLORS.values()))) + ")m)")
SPARK_WIDTH = 32
SPARK_MAX = 48
SPARK_MIN = 4  # shorter ones show nothing, and are left out


class Terminal:
    """What the stream can show: colour only where somebody looks at it, blocks only where it can encode them."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        dumb = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        self.color = stream.isatty() and not dumb
        self.blocks = BLOCKS if can_encode(BLOCKS, stream) else ASCII_BLOCKS
        self.width = shutil.get_terminal_size((100, 24)).columns if stream.isatty() else 100

    def paint(self, text: str, color: str) -> str:
        code = COLORS.get(color)
        return f"\x1b[{code}m{text}\x1b[0m" if self.color and code else text

    def write(self, line: str = "") -> None:
        """One line. Whatever is neither printable nor painted by us is replaced, wherever it came from."""
        line = "".join(part if _PAINT.fullmatch(part) else clean(part) for part in _PAINT.split(line))
        encoding = self.stream.encoding or "utf-8"
        self.stream.write(line.encode(encoding, "replace").decode(encoding) + "\n")


def can_encode(text: str, stream: TextIO) -> bool:
    try:
        text.encode(stream.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def clean(text: str) -> str:
    """Names come from files: an escape sequence in one must not reach the terminal."""
    return "".join(character if character.isprintable() else "?" for character in text)


def format_number(value: float) -> str:
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if float(value).is_integer() and abs(value) < 1e6:
        return f"{value:.0f}"
    return f"{value:.4g}"


def format_age(seconds: float) -> str:
    for limit, unit, size in ((90, "s", 1), (5400, "min", 60), (129600, "h", 3600)):
        if seconds < limit:
            return f"{max(seconds, 0) / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def draw_sparkline(values: Sequence[float] | np.ndarray, terminal: Terminal, width: int = SPARK_WIDTH) -> str:
    """The course of a curve in one line; logarithmic where it spans more than two decades.

    Each character is the mean of its share of the values; one that holds no finite value is a cross.
    """
    if not width:
        return ""
    scaled = np.asarray(values, dtype=np.float64)
    largest = np.abs(scaled[np.isfinite(scaled)]).max(initial=0.0)
    scaled = scaled / 2.0**64 if largest > 1e280 else scaled  # sums and differences of such numbers would overflow
    parts = np.array_split(scaled, min(width, max(len(values), 1)))
    heights = np.array([part[np.isfinite(part)].mean() if np.isfinite(part).any() else np.nan for part in parts])
    finite = heights[np.isfinite(heights)]
    if not len(finite):
        return BROKEN * len(parts) if len(values) else ""
    if finite.min() > 0 and finite.max() > 100 * finite.min():
        heights, finite = np.log(heights), np.log(finite)
    span = finite.max() - finite.min()
    if span < 1e-9 * abs(finite).max():  # the mean of equal numbers need not be that number
        span = 0.0
    levels = (heights - finite.min()) / span if span > 0 else np.where(np.isfinite(heights), 0.0, np.nan)
    top = len(terminal.blocks) - 1
    return "".join(BROKEN if math.isnan(x) else terminal.blocks[round(x * top)] for x in levels)


def fit_sparkline(terminal: Terminal, rows: Iterable[Sequence[str]]) -> int:
    """How wide sparklines may be beside a table with these cells: a line that wraps cannot be read. 0: no room."""
    taken = sum(max(map(len, column)) + 2 for column in zip(*rows, strict=True))
    room = min(SPARK_MAX, terminal.width - taken)
    return room if room >= SPARK_MIN else 0


def choose_title(width: int, *titles: str) -> str:
    """The first that is not wider than the column under it."""
    return next((title for title in titles if len(title) <= width), "")


def wrap(line: str, terminal: Terminal) -> list[str]:
    """A sentence in lines of the terminal's width, the second and later ones indented."""
    return textwrap.wrap(line, max(20, terminal.width), subsequent_indent="  ") or [""]


def format_table(rows: Iterable[Sequence[str]], align: str) -> Iterator[str]:
    """Aligned columns; ``align`` has one of ``<`` and ``>`` per column."""
    table = [list(row) for row in rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(align))]
    for row in table:
        cells = (f"{cell:{side}{width}}" for cell, side, width in zip(row, align, widths, strict=True))
        yield "  ".join(cells).rstrip()

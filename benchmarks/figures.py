"""How all figures look, and where they go."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt  # the backend must be chosen first

COLORS = ("#888888", "#3b6fb6", "#d1762c", "#4b9460", "#a04a7d", "#7a6a4f", "#2b2b2b")
STYLE = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.prop_cycle": matplotlib.cycler(color=COLORS),
    "font.size": 9,
    "svg.hashsalt": "cockpit",  # the same numbers give the same file
}


@contextmanager
def figure(folder: Path, name: str, columns: int = 1, size: tuple[float, float] = (6, 3.4)) -> Iterator[Any]:
    """Axes to draw on; saved as PNG and SVG afterwards."""
    with plt.rc_context(STYLE):
        made, axes = plt.subplots(1, columns, figsize=size, layout="constrained", squeeze=False)
        yield axes[0] if columns > 1 else axes[0, 0]
        folder.mkdir(parents=True, exist_ok=True)
        made.savefig(folder / f"{name}.png", dpi=130)
        made.savefig(folder / f"{name}.svg", metadata={"Date": None})
        plt.close(made)


def draw_bars(axes: Any, rows: dict[str, dict[str, float]], label: str) -> None:
    """Horizontal bars from 1 (the untracked step) to the median, whiskers at the quartiles."""
    names = list(rows)
    median = [rows[name]["median"] for name in names]
    errors = [
        [max(0.0, rows[name]["median"] - rows[name]["low"]) for name in names],
        [max(0.0, rows[name]["high"] - rows[name]["median"]) for name in names],
    ]
    axes.barh(names, median, xerr=errors, color=COLORS[1], error_kw={"elinewidth": 1})
    axes.axvline(1, color="black", linewidth=0.8)
    for name, value in zip(names, median, strict=True):
        axes.annotate(f"{value:.2f}", (value, name), xytext=(6, 0), textcoords="offset points", va="center", fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel(label)
    axes.margins(x=0.12)

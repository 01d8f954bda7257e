"""How all figures look, and where they go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt  # the backend must be chosen first
from matplotlib.ticker import FuncFormatter

COLORS = ("#888888", "#3b6fb6", "#d1762c", "#4b9460", "#a04a7d", "#7a6a4f", "#2b2b2b")
MARKERS = ("o", "s", "D", "^", "v", "X")
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


def draw_bars(axes: Any, rows: dict[str, dict[str, float]], label: str, *, logarithmic: bool = False) -> None:
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
        axes.annotate(f"{value:.3g}", (value, name), xytext=(6, 0), textcoords="offset points", va="center", fontsize=8)
    if logarithmic:
        count_in_powers(axes.xaxis, axes.set_xscale)
    axes.invert_yaxis()
    axes.set_xlabel(label)
    axes.margins(x=0.12)


def draw_dots(axes: Any, rows: dict[str, dict[str, Any]], titles: Sequence[str], label: str) -> None:
    """One line per name, one mark per title, on a logarithmic axis; hollow where part of what was asked has no value."""
    names = list(rows)
    for k, title in enumerate(titles):
        style = {"edgecolors": COLORS[k + 1], "marker": MARKERS[k], "s": 28, "zorder": 3}
        axes.scatter([], [], facecolors=COLORS[k + 1], label=title, **style)
        for y, row in enumerate(rows[name].get(title) for name in names):
            if row is None:
                continue
            x = row["multiple"]["median"]
            hollow = row.get("curvature") == "no value"
            axes.scatter(x, y, facecolors="white" if hollow else COLORS[k + 1], **style)
            if len(titles) <= 2:
                axes.annotate(f"{x:.3g}", (x, y), xytext=(7, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_yticks(range(len(names)), names)
    count_in_powers(axes.xaxis, axes.set_xscale)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.grid(axis="both", color="#e4e4e4", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.margins(x=0.1)
    axes.set_xlim(left=0.8)
    axes.set_xlabel(label)
    axes.legend(frameon=False, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=len(titles))


def count_in_powers(axis: Any, set_scale: Any) -> None:
    """Logarithmic, with numbers rather than powers of ten at the ticks."""
    set_scale("log")
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))

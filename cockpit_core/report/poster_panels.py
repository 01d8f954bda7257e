"""How each picture of the poster is drawn, on matplotlib axes that are handed in."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from cockpit_core.events.heavy import check_shown
from cockpit_core.schema.wire import decode_histogram

# Okabe and Ito's colours: people who see fewer colours can tell them apart.
COLORS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]
DASHES = ["-", "--", ":", "-."]
THRESHOLDS = {"NormTest": 0.9, "InnerTest": 0.9, "OrthoTest": 5.84}
MAX_POINTS = 2_000
LARGEST = 1e200  # what is beyond is drawn like infinity: matplotlib's own sums would overflow
# Curves whose size is read in orders of magnitude.
LOG = {
    "Distance",
    "UpdateSize",
    "GradNorm",
    "GradNormClipped",
    "HessTrace",
    "HessMaxEV",
    "TICTrace",
    "TICDiag",
    "CABS",
    "NormTest",
    "InnerTest",
    "OrthoTest",
    "MeanGSNR",
    "LearningRate",
    "Loss",
}


@cache
def _glyphs() -> frozenset[int]:
    from matplotlib.font_manager import findfont, get_font

    return frozenset(get_font(findfont("DejaVu Sans")).get_charmap())


def plain(text: str, length: int = 40) -> str:
    """A name as harmless one-line text: no control characters, none the font lacks, not too long."""
    shown = "".join(c if c.isprintable() and ord(c) in _glyphs() else "\u25a1" for c in text[: length + 1])
    return shown if len(shown) <= length else shown[: length - 1] + "\u2026"


def has_scalars(run: Any, name: str) -> bool:
    return len(scalars(run, name)[0]) > 0


def has_histogram(run: Any, name: str) -> bool:
    return histogram(run, name) is not None


def scalars(run: Any, name: str) -> tuple[np.ndarray, np.ndarray]:
    try:
        steps, values = run.scalars(name)
    except KeyError:
        return np.zeros(0), np.zeros(0)
    values = np.asarray(values, dtype=float)
    return np.asarray(steps), np.where(np.abs(values) > LARGEST, np.copysign(np.inf, values), values)


def histogram(run: Any, name: str, layer: str | None = None) -> Any:
    """The newest one; None where there is none, or where it is damaged or too large to be drawn."""
    try:
        check_shown(blob := run.histogram_bytes(name, layer=layer))
        decoded = decode_histogram(blob)
    except (KeyError, ValueError, OSError):
        return None
    return decoded if _is_drawable(decoded.edges) and _is_drawable(decoded.parameter_edges) else None


def _is_drawable(edges: np.ndarray | None) -> bool:
    """Bins need at least two edges, all finite and increasing."""
    return edges is None or (edges.size > 1 and bool(np.isfinite(edges).all() and (np.diff(edges) > 0).all()))


def set_scale(axes: Any, side: str, edges: np.ndarray) -> None:
    """Bins by magnitude are drawn by magnitude: logarithmic on both sides of the bin around zero."""
    middle = len(edges) // 2
    if len(edges) % 2 or len(edges) < 8 or edges[middle] != -edges[middle - 1] or edges[middle] <= 0:
        return
    if edges[middle + 1] - edges[middle] < 0.5 * (edges[-1] - edges[-2]):  # even bins all have the same width
        getattr(axes, f"set_{side}scale")("symlog", linthresh=edges[middle], linscale=0.5)


def thin(steps: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """At most about MAX_POINTS, the extremes of every stretch among them."""
    if len(steps) <= MAX_POINTS:
        return steps, values
    bounds = np.linspace(0, len(steps), MAX_POINTS // 2 + 1).astype(int)
    keep: list[int] = []
    for start, end in pairwise(bounds):
        part = np.nan_to_num(values[start:end], nan=-np.inf)
        keep += sorted({start + int(np.argmin(part)), start + int(np.argmax(part))})
    return steps[keep], values[keep]


def draw_curves(axes: Any, runs: Sequence[Any], names: tuple[str, ...]) -> None:
    positive = True
    for color, run in zip(COLORS * len(runs), runs, strict=False):
        for number, name in enumerate(names):
            steps, values = thin(*scalars(run, name))
            if not len(steps):
                continue
            finite = values[np.isfinite(values)]
            positive = positive and bool(len(finite)) and bool(np.all(finite > 0))
            dash = DASHES[number % len(DASHES)]
            label = plain(name.removeprefix("log/"))
            marker = "o" if len(steps) == 1 else None
            axes.plot(
                steps,
                np.where(np.isfinite(values), values, np.nan),
                dash,
                color=color,
                lw=1.0,
                marker=marker,
                ms=3,
                label=label if run is runs[0] else f"_{label}",
            )
    if positive and names[0] in LOG:
        axes.set_yscale("log")
        _label_decades(axes.yaxis)
    _finish(axes, legend=len(names) > 1 or names[0].startswith("log/"))


def _label_decades(axis: Any) -> None:
    """Plain numbers, and few: matplotlib's "6 x 10^-1" run into each other on an axis this short."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = axis.get_view_interval()
    short = high < 100 * low
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if short else (1.0,)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def draw_tests_history(axes: Any, runs: Sequence[Any], names: tuple[str, ...]) -> None:
    draw_curves(axes, runs, names)
    for level in sorted({THRESHOLDS[name] for name in names}):
        axes.axhline(level, color="#8c959f", lw=0.7, ls=(0, (4, 3)))


def draw_eigenvalue(axes: Any, runs: Sequence[Any], names: tuple[str, ...]) -> None:
    """The largest eigenvalue, and 2 / learning rate beside it where the optimizer is plain SGD."""
    draw_curves(axes, runs, names)
    for color, run in zip(COLORS * len(runs), runs, strict=False):
        optimizers = run.header.optimizers
        steps, rates = thin(*scalars(run, "LearningRate"))
        if len(steps) and optimizers and optimizers[0].name == "SGD" and np.all(rates > 0):
            axes.plot(steps, 2.0 / rates, ":", color=color, lw=1.0, label="2 / learning rate")
            axes.legend(fontsize=6, frameon=False)


def draw_alpha(axes: Any, runs: Sequence[Any], names: tuple[str, ...]) -> None:
    """Density of alpha, all steps and the last tenth, on the normalised parabola: -1 stands still, 0 is the floor."""
    grid = np.linspace(-1.6, 1.6, 65)
    axes.plot(grid, grid**2 / 2.56 * 1.1, color="#8c959f", lw=1.0)
    off = 0
    for place, (color, run) in enumerate(zip(COLORS * len(runs), runs, strict=False)):
        values = scalars(run, "Alpha")[1]
        values = values[np.isfinite(values)]
        if not len(values):
            continue
        last = values[-max(1, len(values) // 10) :]
        off += int(np.sum(np.abs(values) > 1.6))
        for part, opacity in ((values, 0.2), (last, 0.5)):
            counts, edges = np.histogram(np.clip(part, -1.6, 1.6), bins=40, range=(-1.6, 1.6))
            density = counts / max(1, counts.max())
            axes.stairs(density, edges, fill=True, color=color, alpha=opacity)
        axes.axvline(float(np.median(last)), color=color, lw=1.0, ls="--")
        medians = f"median {np.median(values):.2f}, last 10 % {np.median(last):.2f}"
        axes.text(0.02, 0.98 - 0.09 * place, medians, color=color, fontsize=7, transform=axes.transAxes, va="top")
    axes.set_xticks([-1, 0, 1], ["-1\nstands still", "0\nvalley floor", "+1\nopposite wall"])
    axes.set_yticks([])
    axes.set_ylim(0, 1.15 + 0.16 * len(runs))  # the words stand above the bars
    if off:
        axes.text(0.98, 0.95, f"{off} off the scale", fontsize=7, transform=axes.transAxes, va="top", ha="right")


def draw_tests(axes: Any, runs: Sequence[Any], names: tuple[str, ...]) -> None:
    """The newest values of the three tests against their usual thresholds, as bars on a log axis."""
    width = 0.8 / max(1, len(runs))
    for place, (color, run) in enumerate(zip(COLORS * len(runs), runs, strict=False)):
        for row, name in enumerate(names):
            values = scalars(run, name)[1]
            finite = values[np.isfinite(values) & (values > 0)]
            if len(finite):
                y = row + (place - (len(runs) - 1) / 2) * width
                axes.barh(y, finite[-1], height=width * 0.9, color=color, left=0)
                box = {
                    "facecolor": "white",
                    "edgecolor": "none",
                    "pad": 0.5,
                    "alpha": 0.8,
                }  # a threshold may run through
                axes.text(finite[-1] * 1.04, y, f"{finite[-1]:.3g}", va="center", fontsize=7, bbox=box)
    for row, name in enumerate(names):
        axes.plot([THRESHOLDS[name]] * 2, [row - 0.45, row + 0.45], color="black", lw=1.0, ls="--")
    axes.set_yticks(range(len(names)), names)
    axes.set_xscale("log")
    _label_decades(axes.xaxis)
    axes.invert_yaxis()
    axes.set_xlabel("noise relative to the gradient; dashed: usual threshold", fontsize=7)


def draw_histogram(axes: Any, runs: Sequence[Any], names: tuple[str, ...]) -> None:
    """Gradient element x parameter value of the newest histogram, log counts; one run (the first that has one)."""
    histograms = [(run, histogram(run, name)) for run in runs for name in names]
    run, shown = next((run, h) for run, h in histograms if h is not None)
    counts = np.log10(1.0 + np.asarray(shown.counts, dtype=float))
    y, x = shown.edges, shown.parameter_edges
    axes.pcolormesh(x, y, np.where(counts > 0, counts, np.nan), cmap="viridis", rasterized=True)
    set_scale(axes, "x", x)
    set_scale(axes, "y", y)
    which = f" ({plain(run.header.name, 40)})" if len(runs) > 1 else ""
    axes.set_xlabel(f"parameter value{which}", fontsize=7, parse_math=False)
    axes.set_ylabel("gradient element", fontsize=7)
    axes.set_title(f"step {shown.step:,}", fontsize=7, loc="right", parse_math=False)


def draw_layers(axes: Any, runs: Sequence[Any], names: tuple[str, ...]) -> None:
    """Gradient elements of every layer as one strip each, in network order, each scaled to its own peak."""
    for run in runs:
        for name in names:
            layers = [(layer, histogram(run, name, layer)) for layer in run.layers]
            layers = [(layer, h) for layer, h in layers if h is not None and np.size(h.counts)]
            if layers:
                _draw_strips(axes, layers)
                return
    axes.text(0.5, 0.5, "no layer-wise histograms", ha="center", transform=axes.transAxes, fontsize=8, color="#57606a")


def _draw_strips(axes: Any, layers: list[tuple[str, Any]]) -> None:
    shown = layers[:24]
    for row, (_, h) in enumerate(reversed(shown)):  # the first layer on top
        counts = np.asarray(h.counts, dtype=float)
        counts = np.log1p(counts.sum(axis=1) if counts.ndim == 2 else counts)
        heights = row + 0.9 * counts / max(1e-12, counts.max())
        axes.stairs(heights, h.edges, baseline=row, fill=True, color=COLORS[0], alpha=0.7)
    set_scale(axes, "x", shown[0][1].edges)
    names = [plain(name, 22) for name, _ in reversed(shown)]
    axes.set_yticks([row + 0.4 for row in range(len(shown))], names, fontsize=6)
    for label in axes.get_yticklabels():
        label.set_parse_math(False)
    axes.set_xlabel(f"gradient element (log counts), step {shown[0][1].step:,}", fontsize=7)


def _finish(axes: Any, legend: bool) -> None:
    axes.set_xlabel("step", fontsize=7)
    axes.grid(True, color="#eaeef2", lw=0.6)
    if legend:
        drawn = axes.legend(fontsize=6, frameon=False)
        for text in drawn.get_texts():
            text.set_parse_math(False)

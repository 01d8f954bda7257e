"""The cockpit as one static picture, for places that show no widgets: GitHub, nbviewer, mail, a remote shell.

Drawn with matplotlib's object interface only. pyplot is never imported: it would touch the user's backend and figures.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cockpit_core.report.poster_panels import (
    COLORS,
    draw_alpha,
    draw_curves,
    draw_eigenvalue,
    draw_histogram,
    draw_layers,
    draw_tests,
    draw_tests_history,
    has_histogram,
    has_scalars,
    plain,
    scalars,
)

WITHOUT_PICTURE = {"Time", "ParamNorm"}
MOST_OTHERS = 12
MAX_PNG_BYTES = 600_000  # in a saved notebook it is stored beside the widget's own state


@dataclass(frozen=True)
class Panel:
    """One picture of the poster. ``names`` are the quantities it can show; none of them tracked = no panel."""

    title: str
    names: tuple[str, ...]
    draw: Callable[[Any, Sequence[Any], tuple[str, ...]], None]


PANELS = [
    Panel("Alpha: step against the valley", ("Alpha",), draw_alpha),
    Panel("Gradient tests", ("NormTest", "InnerTest", "OrthoTest"), draw_tests),
    Panel("Largest Hessian eigenvalue", ("HessMaxEV",), draw_eigenvalue),
    Panel("Distance and update size", ("Distance", "UpdateSize"), draw_curves),
    Panel("Gradient tests over time", ("NormTest", "InnerTest", "OrthoTest"), draw_tests_history),
    Panel("Hessian trace", ("HessTrace",), draw_curves),
    Panel("Gradient norm", ("GradNorm", "GradNormClipped"), draw_curves),
    Panel("Gradient x parameter", ("GradHist2d",), draw_histogram),
    Panel("TIC", ("TICTrace", "TICDiag"), draw_curves),
    Panel("Gradient elements by layer", ("GradHist1d", "GradHist2d"), draw_layers),
    Panel("CABS batch size", ("CABS",), draw_curves),
    Panel("Early stopping", ("EarlyStopping",), draw_curves),
    Panel("Mean GSNR", ("MeanGSNR",), draw_curves),
    Panel("Loss", ("Loss",), draw_curves),
    Panel("Learning rate", ("LearningRate",), draw_curves),
    Panel("Logged", (), draw_curves),
]


def try_draw_png(runs: Sequence[Any]) -> str | None:
    """The poster as base64, or None where there is nothing to draw yet or no matplotlib to draw it with."""
    if not any(has_scalars(run, "Loss") or run.names for run in runs):
        return None
    try:
        data = draw_poster(runs, "png")
    except ImportError:
        return None
    return base64.b64encode(data).decode("ascii") if len(data) <= MAX_PNG_BYTES else None


def draw_poster(runs: Sequence[Any], file_format: str = "png") -> bytes:
    """All panels that have something to show, three in a row, as a PNG or SVG file."""
    try:
        from matplotlib import rc_context
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("The poster is drawn with matplotlib: pip install 'torch-cockpit[poster]'.") from error
    panels = [panel for panel in (_with_names(p, runs) for p in (*PANELS, *_others(runs))) if panel is not None]
    rows = max(1, -(-len(panels) // 3))
    style: Any = {
        "font.family": ["DejaVu Sans"],
        "svg.fonttype": "path",
        "svg.hashsalt": "cockpit",
        "text.usetex": False,
    }
    with rc_context(style):
        figure = Figure(figsize=(12.0, 0.8 + 2.7 * rows), dpi=80, facecolor="white")
        FigureCanvasAgg(figure)
        _write_titles(figure, runs)
        height = figure.get_figheight()
        top = 1.0 - (0.45 + 0.17 * len(runs)) / height
        figure.subplots_adjust(left=0.085, right=0.985, bottom=0.45 / height, top=top, hspace=0.42, wspace=0.25)
        for place, panel in enumerate(panels):
            _draw(figure.add_subplot(rows, 3, place + 1), panel, runs)
        if not panels:
            figure.text(0.5, 0.5, "Nothing was tracked yet.", ha="center", color="#57606a")
        output = io.BytesIO()
        metadata = {"Date": None} if file_format == "svg" else {"Software": "cockpit"}
        with np.errstate(all="ignore"):
            figure.savefig(output, format=file_format, metadata=metadata)
    return output.getvalue()


def _draw(axes: Any, panel: Panel, runs: Sequence[Any]) -> None:
    axes.set_title(panel.title, fontsize=9, loc="left", fontweight="bold", parse_math=False)
    axes.tick_params(which="both", labelsize=6.5, color="#8c959f", labelcolor="#424a53")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#8c959f")
    with np.errstate(all="ignore"):
        try:
            panel.draw(axes, runs, panel.names)
        except (ValueError, TypeError, ArithmeticError, LookupError) as error:  # values that matplotlib cannot place
            words = f"cannot be drawn: {plain(str(error), 60)}"
            axes.text(0.5, 0.5, words, ha="center", transform=axes.transAxes, fontsize=7, parse_math=False)


def _with_names(panel: Panel, runs: Sequence[Any]) -> Panel | None:
    """The panel with the names that some run has, or None."""
    if panel.title == "Logged":
        names = tuple(dict.fromkeys(name for run in runs for name in run.names if name.startswith("log/")))[:4]
        return Panel(panel.title, names, panel.draw) if names else None
    wants = has_histogram if panel.draw in (draw_histogram, draw_layers) else has_scalars
    names = tuple(name for name in panel.names if any(wants(run, name) for run in runs))
    return Panel(panel.title, names, panel.draw) if names else None


def _others(runs: Sequence[Any]) -> list[Panel]:
    """A curve for every quantity without a picture of its own, as the headers name them."""
    claimed = {name for panel in PANELS for name in panel.names} | WITHOUT_PICTURE
    tracked = {info.name: info for run in runs for info in run.header.quantities if info.kind == "scalar"}
    return [Panel(plain(name), (name,), draw_curves) for name in tracked if name not in claimed][:MOST_OTHERS]


def _write_titles(figure: Any, runs: Sequence[Any]) -> None:
    """One line per run, in its colour."""
    lines = [_describe(run) for run in runs]
    height = figure.get_figheight()
    for number, (color, line) in enumerate(zip(COLORS * len(lines), lines, strict=False)):
        y = 1.0 - (0.1 + 0.17 * number) / height
        figure.text(0.01, y, line, fontsize=10, va="top", color=color, fontweight="bold", parse_math=False)


def _describe(run: Any) -> str:
    header = run.header
    steps, values = scalars(run, "Loss")
    last = f", step {int(steps[-1]):,}, loss {values[-1]:.4g}" if len(steps) else ""
    model = f" ({plain(header.model, 24)})" if header.model else ""
    return f"{plain(header.name or header.model or 'run', 48)}{model}: {run.status}{last}"

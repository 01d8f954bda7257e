"""Configuration by tracking interval, the paper's Figure 6b: ``python -m benchmarks.intervals``.

A cell is measured where a few cycles (a tracked step and the steps up to the next one) fit into ``--seconds``: the time
of a cycle, divided by that of as many untracked steps that took turns with it. The other cells are combined from what the
interval of 4 showed: the tracked step, the one after it (which completes Alpha), and as many steps that are not
scheduled as the interval has. "full" at every 64th step is measured in any case.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.measure import CONFIGURATIONS, Configuration, Effort, Step, summarise, take_turns, tracked
from benchmarks.networks import PAPER, Network
from benchmarks.results import kept, make_parser, parse

INTERVALS = (1, 4, 16, 64, 256)
PHASES_AT = 4
ALWAYS = ("full, SGD", 64)
LEAST = 3
WARM = 2
Phases = dict[str, float]


def schedule_after_warming(interval: int) -> Callable[[int], bool]:
    """The very first step compiles, the second completes its Alpha; then whole cycles."""
    return lambda step: step == 0 or (step >= WARM and (step - WARM) % interval == 0)


def time_cycles(
    network: Network, c: Configuration, interval: int, cycles: int, clock: str
) -> tuple[np.ndarray, np.ndarray]:
    """[cycles, interval] seconds of tracked and of untracked steps, which took turns."""
    schedule = schedule_after_warming(interval)
    training = tracked(network.train(c.optimizer), c.scale, schedule=schedule, config=c.config, curvature=c.curvature)
    with training as tracking:
        contestants: dict[str, Step] = {"untracked": network.train(c.optimizer), f"{c.title} at {interval}": tracking}
        times = take_turns(contestants, network.batch, Effort(cycles * interval, warm=WARM, clock=clock))
    plain, ours = (np.reshape(values, (cycles, interval)) for values in times.values())
    return ours, plain


def measure_cell(ours: np.ndarray, plain: np.ndarray) -> dict[str, Any]:
    return {"how": "measured", "cycles": len(ours), **summarise(list(ours.sum(1) / plain.sum(1)))}


def find_phases(ours: np.ndarray, plain: np.ndarray) -> Phases:
    """Medians in seconds of the tracked step, the one after it, one that is not scheduled, and an untracked one."""
    tracked_step, after, *idle = ours.T
    return {
        "tracked": float(np.median(tracked_step)),
        "after": float(np.median(after)),
        "idle": float(np.median(idle)),
        "untracked": float(np.median(plain)),
    }


def add_up(phases: Phases, interval: int) -> float:
    """Seconds of a cycle."""
    return phases["tracked"] + phases["after"] + (interval - 2) * phases["idle"]


def combine(phases: Phases, interval: int) -> dict[str, Any]:
    return {"how": "combined", "median": add_up(phases, interval) / (interval * phases["untracked"])}


def measure_row(network: Network, c: Configuration, options: Namespace) -> tuple[dict[str, Any], Phases]:
    """The cell of interval 4 first: it tells what the others would take."""
    cycles = max(LEAST, options.rounds // 2) if c.expensive else options.rounds
    found = time_cycles(network, c, PHASES_AT, cycles, options.clock)
    phases = find_phases(*found)
    row = {str(PHASES_AT): measure_cell(*found)}
    for interval in INTERVALS:
        cycles = choose_cycles(c, interval, phases, options)
        if interval != PHASES_AT and cycles >= LEAST:
            row[str(interval)] = measure_cell(*time_cycles(network, c, interval, cycles, options.clock))
        row.setdefault(str(interval), combine(phases, interval))
    return {str(interval): row[str(interval)] for interval in INTERVALS}, phases


def choose_cycles(c: Configuration, interval: int, phases: Phases, options: Namespace) -> int:
    """How many to measure; fewer than ``LEAST`` are not worth it."""
    if interval == 1:
        return max(LEAST, min(3 * options.rounds, int(options.seconds / (phases["tracked"] + phases["untracked"]))))
    seconds = add_up(phases, interval) + interval * phases["untracked"]
    cycles = min(options.rounds, int(options.seconds / seconds))
    return max(5, cycles) if (c.title, interval) == ALWAYS and not options.quick else cycles


def draw(content: dict[str, Any], options: Namespace) -> None:
    """Blue as in the paper: at most twice the training time. Combined cells are in italics."""
    from benchmarks.figures import figure

    matrix = {title: content["matrix"][title] for title in CONFIGURATIONS if title in content["matrix"]}
    if not matrix:
        return
    values = np.array([[cell["median"] for cell in row.values()] for row in matrix.values()])
    cells = [cell for row in matrix.values() for cell in row.values()]
    with figure(options.results, "intervals", size=(6, 1.1 + 0.4 * len(values))) as axes:
        axes.imshow(np.log2(values), cmap="coolwarm", vmin=-2, vmax=4, aspect="auto")
        for ((row, column), value), cell in zip(np.ndenumerate(values), cells, strict=True):
            style = "italic" if cell["how"] == "combined" else "normal"
            color = "white" if value > 20 else "black"
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", color=color, style=style)
        axes.set_xticks(range(len(INTERVALS)), [str(interval) for interval in INTERVALS])
        axes.set_yticks(range(len(matrix)), list(matrix))
        axes.set_xlabel("tracking interval in steps (in italics: combined)")
        axes.set_title("multiple of the untracked training", fontsize=9)
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)


def show(title: str, row: dict[str, Any]) -> str:
    cells = (f"{k}: {cell['median']:.2f}{'' if cell['how'] == 'measured' else ' combined'}" for k, cell in row.items())
    return f"{title:24s} {', '.join(cells)}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, rounds=7)
    parser.add_argument("--seconds", type=float, default=14, help="a cell whose cycles take longer is combined (14)")
    options = parse(parser, arguments)
    if options.quick:
        options.rounds, options.seconds = LEAST, 0.0
    network = PAPER["mnist_logreg" if options.quick else "cifar10_3c3d"]
    content: dict[str, Any] = {"network": network.name, "matrix": {}, "phases": {}}
    titles = sorted(CONFIGURATIONS, key=lambda title: title != ALWAYS[0])  # what matters most comes first
    with kept("intervals", content, options, draw) as save:
        for title in titles[-1:] if options.quick else titles:
            row, content["phases"][title] = measure_row(network, CONFIGURATIONS[title], options)
            content["matrix"][title] = row
            print(show(title, row), flush=True)
            save()


if __name__ == "__main__":
    main()

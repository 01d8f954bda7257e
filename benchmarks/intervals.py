"""Configuration by tracking interval, the paper's Figure 6b: ``python -m benchmarks.intervals``.

Interval 1 and interval 4 are measured. In a cycle of four steps the first is tracked, the second completes Alpha, and
the others are idle; an interval n costs one tracked step, one that completes Alpha, and n - 2 idle ones, so that the
longer intervals follow from these three. ``--direct`` measures "full" at 64 as well, to check that they do.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from benchmarks.measure import (
    CONFIGURATIONS,
    Configuration,
    Step,
    Training,
    make_parser,
    parse,
    take_turns,
    tracked,
    write_results,
)
from benchmarks.networks import NETWORKS, Network

INTERVALS = (1, 4, 16, 64, 256)
CYCLE = 4


def time_phases(network: Network, configuration: Configuration, rounds: int, clock: str) -> dict[str, float]:
    """Median seconds: of an untracked step, of one where every step is tracked, and of each kind of step in a cycle."""
    c = configuration
    options = {"config": c.config, "curvature": c.curvature}
    with ExitStack() as stack:
        contestants: dict[str, Step] = {"untracked": Training(network.make(), c.optimizer)}
        for name, interval in (("every step", 1), ("cycle", CYCLE)):
            training = Training(network.make(), c.optimizer)
            contestants[name] = stack.enter_context(tracked(training, schedule=interval, **options))
        times = take_turns(contestants, network.batch, CYCLE * rounds, warm=CYCLE, clock=clock)
    cycles = np.reshape(times["cycle"], (rounds, CYCLE))
    return {
        "untracked": float(np.median(times["untracked"])),
        "every step": float(np.median(times["every step"])),
        "tracked": float(np.median(cycles[:, 0])),
        "after": float(np.median(cycles[:, 1])),
        "idle": float(np.median(cycles[:, 2:])),
    }


def fill_matrix(phases: dict[str, float]) -> dict[str, float]:
    """Multiples of the untracked step, by interval."""
    row = {"1": phases["every step"] / phases["untracked"]}
    for interval in INTERVALS[1:]:
        cycle = phases["tracked"] + phases["after"] + (interval - 2) * phases["idle"]
        row[str(interval)] = cycle / interval / phases["untracked"]
    return row


def measure_directly(network: Network, interval: int, clock: str) -> float:
    """Two cycles of "full", side by side with as many untracked steps."""
    with tracked(Training(network.make()), config="full", schedule=interval) as training:
        contestants: dict[str, Step] = {"untracked": Training(network.make()), "full": training}
        times = take_turns(contestants, network.batch, 2 * interval, warm=interval, clock=clock)
    return float(np.sum(times["full"]) / np.sum(times["untracked"]))


def draw(matrix: dict[str, dict[str, float]], options: Namespace) -> None:
    """Blue as in the paper: at most twice the training time."""
    from benchmarks.figures import figure

    values = np.array([list(row.values()) for row in matrix.values()])
    with figure(options.results, "intervals", size=(6, 0.9 + 0.4 * len(values))) as axes:
        axes.imshow(np.log2(values), cmap="coolwarm", vmin=-2, vmax=4, aspect="auto")
        for (row, column), value in np.ndenumerate(values):
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", color="black")
        axes.set_xticks(range(len(INTERVALS)), [str(interval) for interval in INTERVALS])
        axes.set_yticks(range(len(matrix)), list(matrix))
        axes.set_xlabel("tracking interval (steps); multiples of the untracked training")
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, rounds=4)
    parser.add_argument("--direct", action="store_true", help='measure "full" at interval 64 as well')
    options = parse(parser, arguments)
    network = NETWORKS["mnist_logreg" if options.quick else "cifar10_3c3d"]
    phases: dict[str, Any] = {}
    for title, configuration in list(CONFIGURATIONS.items())[: 1 if options.quick else None]:
        rounds = max(1, options.rounds // 2) if configuration.config == "full" else options.rounds
        phases[title] = time_phases(network, configuration, rounds, options.clock)
        print(title, {name: round(value, 2) for name, value in fill_matrix(phases[title]).items()}, flush=True)
    matrix = {title: fill_matrix(row) for title, row in phases.items()}
    content = {"network": network.name, "matrix": matrix, "seconds": phases}
    if options.direct:
        content["full every 64th step, measured"] = measure_directly(network, 64, options.clock)
    write_results("intervals", content, options)
    draw(matrix, options)


if __name__ == "__main__":
    main()

"""Configuration by tracking interval, the paper's Figure 6b: ``python -m benchmarks.intervals``.

Interval 1 is measured. An interval n costs one tracked step, one that completes Alpha, and n - 2 idle ones: the first two
are measured in a run with interval 2, and an idle step counts as an untracked one (``idle.py`` measures the microseconds
between them). ``--direct`` measures "full" at 64 as well, to check that this holds.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
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
CYCLE = 2


def time_phases(network: Network, configuration: Configuration, rounds: int, clock: str) -> dict[str, float]:
    """Median multiples: of a step where every step is tracked, of one tracked in a cycle, and of the one after it.

    One tracked contestant at a time: the step after an expensive one pays for the memory that it gave back.
    """
    c = configuration
    found = {}
    for name, interval in (("every step", 1), ("cycle", CYCLE)):
        training = Training(network.make(), c.optimizer)
        with tracked(training, schedule=interval, config=c.config, curvature=c.curvature):
            contestants: dict[str, Step] = {"untracked": Training(network.make(), c.optimizer), name: training}
            times = take_turns(contestants, network.batch, CYCLE * rounds, warm=CYCLE, clock=clock)
        found[name] = np.reshape(times[name], (rounds, CYCLE)) / np.median(times["untracked"])
    cycle = np.median(found["cycle"], axis=0)
    return {"every step": float(np.median(found["every step"])), "tracked": float(cycle[0]), "after": float(cycle[1])}


def fill_matrix(phases: dict[str, float]) -> dict[str, float]:
    """Multiples of the untracked step, by interval."""
    row = {"1": phases["every step"]}
    for interval in INTERVALS[1:]:
        row[str(interval)] = (phases["tracked"] + phases["after"] + interval - 2) / interval
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
    content: dict[str, Any] = {"network": network.name, "matrix": {}, "multiples": {}}
    for title, configuration in list(CONFIGURATIONS.items())[: 1 if options.quick else None]:
        rounds = max(1, options.rounds // 2) if configuration.config == "full" else options.rounds
        content["multiples"][title] = phases = time_phases(network, configuration, rounds, options.clock)
        content["matrix"][title] = row = fill_matrix(phases)
        print(title, {name: round(value, 2) for name, value in row.items()}, flush=True)
        write_results("intervals", content, options)
    if options.direct:
        content["full every 64th step, measured"] = measure_directly(network, 64, options.clock)
    write_results("intervals", content, options)
    draw(content["matrix"], options)


if __name__ == "__main__":
    main()

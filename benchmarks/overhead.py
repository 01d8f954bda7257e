"""What a tracked step costs, as a multiple of the untracked one: ``python -m benchmarks.overhead``.

First the configurations on the paper's CIFAR-10 network, tracked at every step; then each quantity alone; then the
other networks. An optimizer is compared with its own untracked step.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from benchmarks.measure import (
    CONFIGURATIONS,
    Configuration,
    Step,
    Training,
    compare,
    make_parser,
    parse,
    report,
    take_turns,
    tracked,
    write_results,
)
from benchmarks.networks import NETWORKS, Network

MAIN = "cifar10_3c3d"
EXPENSIVE = ("full, SGD",)


def time_configurations(
    network: Network, configurations: Sequence[Configuration], rounds: int, options: Namespace
) -> dict[str, Any]:
    """All configurations and one untracked step per optimizer, in turn."""
    results: dict[str, Any] = {}
    for optimizer in dict.fromkeys(c.optimizer for c in configurations):
        mine = [c for c in configurations if c.optimizer == optimizer]
        with ExitStack() as stack:
            contestants: dict[str, Step] = {"untracked": Training(network.make(), optimizer)}
            for c in mine:
                training = Training(network.make(), optimizer)
                contestants[c.title] = stack.enter_context(tracked(training, config=c.config, curvature=c.curvature))
            times = take_turns(contestants, network.batch, rounds, clock=options.clock)
        rows = compare(times)
        rows[f"untracked, {optimizer}"] = rows.pop("untracked")
        results |= rows
    return results


def time_quantities(network: Network, names: Sequence[str], rounds: int, options: Namespace) -> dict[str, Any]:
    """Each quantity alone, tracked at every step."""
    from cockpit_core.quantities import ALL

    with ExitStack() as stack:
        contestants: dict[str, Step] = {"untracked": Training(network.make())}
        for name in names:
            contestants[name] = stack.enter_context(tracked(Training(network.make()), config=[ALL[name]()]))
        return compare(take_turns(contestants, network.batch, rounds, clock=options.clock))


def choose_network(options: Namespace) -> Network:
    return NETWORKS["mnist_logreg" if options.quick else MAIN]


def measure_configurations(options: Namespace) -> dict[str, Any]:
    """Expensive configurations apart and with fewer rounds: the cheap ones should not wait for them."""
    network = choose_network(options)
    cheap = [c for c in CONFIGURATIONS.values() if c.title not in EXPENSIVE]
    rows = time_configurations(network, cheap, options.rounds, options)
    expensive = [CONFIGURATIONS[title] for title in EXPENSIVE]
    again = time_configurations(network, expensive, max(1, options.rounds // 3), options)
    rows |= {title: again[title] for title in EXPENSIVE}
    report(f"{network.name}, batch {network.batch_size}", rows)
    return {"network": network.name, "rows": rows}


def measure_quantities(options: Namespace) -> dict[str, Any]:
    from cockpit_core.quantities import ALL

    network = choose_network(options)
    names = ["Loss", "GradHist1d"] if options.quick else [name for name in ALL if name != "HessMaxEV"]
    rows = time_quantities(network, names, max(1, options.rounds // 2), options)
    if not options.quick:
        rows["HessMaxEV"] = time_quantities(network, ["HessMaxEV"], max(1, options.rounds // 3), options)["HessMaxEV"]
    report(f"{network.name}: each quantity alone", rows)
    return {"network": network.name, "rows": rows}


def measure_networks(options: Namespace) -> dict[str, Any]:
    """All but the one that has the fuller measurement, with fewer rounds."""
    results = {}
    for name in options.networks or ([] if options.quick else [name for name in NETWORKS if name != MAIN]):
        configurations = [c for c in CONFIGURATIONS.values() if c.optimizer == "SGD"]
        results[name] = time_configurations(NETWORKS[name], configurations, max(1, options.rounds // 4), options)
        report(f"{name}, batch {NETWORKS[name].batch_size}", results[name])
    return {"networks": results}


PARTS = {"configurations": measure_configurations, "quantities": measure_quantities, "networks": measure_networks}


def draw(name: str, results: dict[str, Any], options: Namespace) -> None:
    from benchmarks.figures import draw_bars, figure

    rows = {title: row["multiple"] for title, row in results["rows"].items() if not title.startswith("untracked")}
    with figure(options.results, name, size=(6, 0.8 + 0.27 * len(rows))) as axes:
        draw_bars(axes, rows, f"multiple of the untracked step, {results['network']}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, rounds=21)
    parser.add_argument("--parts", nargs="+", choices=tuple(PARTS), default=list(PARTS))
    parser.add_argument("--networks", nargs="+", choices=tuple(NETWORKS), help="the networks of the last part")
    options = parse(parser, arguments)
    for part in options.parts:
        results = PARTS[part](options)
        write_results(f"overhead_{part}", results, options)
        if "rows" in results:
            draw(f"overhead_{part}", results, options)


if __name__ == "__main__":
    main()

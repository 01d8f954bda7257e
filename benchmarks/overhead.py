"""What a tracked step costs, as a multiple of the untracked one: ``python -m benchmarks.overhead``.

First the configurations on the paper's CIFAR-10 network, tracked at every step; then each quantity alone; then the
other networks of the paper and some that people train, each within a time limit. An optimizer is compared with its own
untracked step.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from benchmarks.architectures import NETWORKS
from benchmarks.measure import OVERHEAD, Configuration, Effort, Step, compare, make_quantity, take_turns, tracked
from benchmarks.networks import TINY, Network
from benchmarks.results import kept, make_parser, parse, report

MAIN = "cifar10_3c3d"
SLOW_QUANTITIES = ("HessMaxEV",)
SECONDS = 4.0
"""For each group of contestants on another network, after one round to warm up."""
Rows = dict[str, dict[str, Any]]
Times = dict[str, list[float]]
Notes = dict[str, dict[str, str]]


def time_together(network: Network, configurations: Sequence[Configuration], effort: Effort) -> tuple[Times, Notes]:
    """Configurations with one optimizer, each in turn with its untracked step; and how each found the curvature. One at a time:
    every backward pass of the process is told to all runs that are alive, so that beside three of them the untracked step of a
    tiny network takes twice as long."""
    optimizer = configurations[0].optimizer
    times: Times = {"untracked": []}
    notes: Notes = {}
    for c in configurations:
        plain = network.train(optimizer)
        plain(*network.batch())  # warm, also where there is time for one round only
        ours = tracked(network.train(optimizer), c.scale, c.judged, config=c.config, curvature=c.curvature)
        with ours as training:
            found = take_turns({"untracked": plain, c.title: training}, network.batch, effort)
            notes[c.title] = describe_curvature(training.run.data)
        times["untracked"] += found["untracked"]
        times[c.title] = found[c.title]
    return times, notes


def describe_curvature(data: Any) -> dict[str, str]:
    """How the trace of the Hessian was found, or that it was not: then the time says little."""
    if any(value.name == "HessTrace" for value in data.missing):
        return {"curvature": "no value"}
    if "HessTrace" not in data.names:
        return {}
    estimates = data.estimates.get("HessTrace")
    return {"curvature": estimates.methods[-1] if estimates else "exact"}


def time_quantities(network: Network, names: Sequence[str], effort: Effort) -> Rows:
    """Each quantity alone, tracked at every step."""
    with ExitStack() as stack:
        contestants: dict[str, Step] = {"untracked": network.train()}
        for name in names:
            contestants[name] = stack.enter_context(tracked(network.train(), config=[make_quantity(name)]))
        return compare(take_turns(contestants, network.batch, effort))


def choose_network(options: Namespace) -> Network:
    return NETWORKS["mnist_logreg" if options.quick else MAIN]


def measure_configurations(options: Namespace) -> None:
    """The expensive one apart and with fewer rounds."""
    network, rows = choose_network(options), dict[str, Any]()
    content = {"network": network.name, "rows": rows}
    cheap = [c for c in OVERHEAD.values() if not c.expensive]
    groups = [[c for c in cheap if c.optimizer == "SGD"], [c for c in cheap if c.optimizer == "Adam"]]
    with kept("overhead_configurations", content, options, draw_rows) as save:
        for group in [*groups, [c for c in OVERHEAD.values() if c.expensive]]:
            rounds = max(1, options.rounds // 3) if group[0].expensive else options.rounds
            found = compare(time_together(network, group, Effort(rounds, clock=options.clock))[0])
            rows.setdefault(f"untracked, {group[0].optimizer}", found["untracked"])
            rows |= {c.title: found[c.title] for c in group}
            report(f"{network.name}, batch {network.batch_size}", found)
            save()


def measure_quantities(options: Namespace) -> None:
    from cockpit_core.quantities import ALL

    network, rows = choose_network(options), dict[str, Any]()
    quick = [name for name in ALL if name not in SLOW_QUANTITIES]
    groups = [["Loss", "GradHist1d"]] if options.quick else [quick, SLOW_QUANTITIES]
    with kept("overhead_quantities", {"network": network.name, "rows": rows}, options, draw_rows) as save:
        for group, share in zip(groups, (3, 4), strict=False):
            found = time_quantities(network, group, Effort(max(1, options.rounds // share), clock=options.clock))
            rows |= {name: row for name, row in found.items() if name not in rows}
            report(f"{network.name}: each quantity alone", found)
            save()


def measure_network(network: Network, options: Namespace) -> Rows:
    """The cheap configurations in turn, three rounds at least; the others one by one, one round at least."""
    ours = [c for c in OVERHEAD.values() if c.optimizer == "SGD" and c.title not in network.skipped]
    dear = [c for c in ours if c.config != "economy" and c.curvature == "hessian"]
    groups = [[c for c in ours if c not in dear], *([c] for c in dear)]
    times: Times = {}
    notes: Notes = {}
    for group in groups:
        least = 1 if options.quick or group[0] in dear else 3
        effort = Effort(options.rounds, least, options.seconds, warm=1, clock=options.clock)
        found, more = time_together(network, group, effort)
        untracked = times.get("untracked", []) + found["untracked"]  # the same step in each group
        times |= found | {"untracked": untracked}
        notes |= more
    return {name: row | notes.get(name, {}) for name, row in compare(times).items()}


def compile_kernels() -> None:
    """So that no round to warm up is slow for another reason than its network."""
    for c in OVERHEAD.values():
        time_together(TINY, [c], Effort(2))


def measure_networks(options: Namespace) -> None:
    """One that fails does not stop the others, but the script says so in the end."""
    names = options.networks or ([] if options.quick else [name for name in NETWORKS if name != MAIN])
    networks, failed = dict[str, Any](), dict[str, str]()
    content = {"seconds per group": options.seconds, "networks": networks, "failed": failed}
    if names:
        compile_kernels()
    with kept("overhead_networks", content, options, draw_networks) as save:
        for network in sorted((NETWORKS[name] for name in names), key=lambda network: bool(network.skipped)):
            try:  # the slowest comes last
                rows = measure_network(network, options)
            except Exception as error:
                failed[network.name] = f"{type(error).__name__}: {error}"
                print(f"\n{network.name} failed: {failed[network.name]}", flush=True)
                continue
            entry = {"parameters": network.parameters, "batch": network.batch_size, "rows": rows}
            networks[network.name] = entry
            report(f"{network.name}, batch {network.batch_size}", rows)
            save()
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


PARTS = {"configurations": measure_configurations, "quantities": measure_quantities, "networks": measure_networks}


# ---- figures ---------------------------------------------------------------------------------------------------------


def draw_rows(content: dict[str, Any], options: Namespace) -> None:
    from benchmarks.figures import draw_bars, figure

    rows = {title: row["multiple"] for title, row in content["rows"].items() if not title.startswith("untracked")}
    if rows:
        name = "overhead_configurations" if set(rows) <= set(OVERHEAD) else "overhead_quantities"
        with figure(options.results, name, size=(6, 0.8 + 0.27 * len(rows))) as axes:
            draw_bars(axes, rows, f"multiple of the untracked step, {content['network']}")


def draw_networks(content: dict[str, Any], options: Namespace) -> None:
    from benchmarks.figures import draw_dots, figure

    found = {name: entry["rows"] for name, entry in content["networks"].items()}
    if found:
        titles = [title for title, c in OVERHEAD.items() if c.optimizer == "SGD" and c.judged]
        with figure(options.results, "overhead_networks", size=(7, 1.1 + 0.3 * len(found))) as axes:
            draw_dots(axes, found, titles, "multiple of the untracked step")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, rounds=21)
    parser.add_argument("--parts", nargs="+", choices=tuple(PARTS), default=list(PARTS))
    parser.add_argument("--networks", nargs="+", choices=tuple(NETWORKS), help="the networks of the last part")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"per group in the last part ({SECONDS:g})")
    options = parse(parser, arguments)
    for part in options.parts:
        PARTS[part](options)


if __name__ == "__main__":
    main()

"""What the instruments beyond the paper add to an economy step: ``python -m benchmarks.instruments``.

Each beside economy, in percent of an economy step (Adam, tracked at every step), and all together: those that cost passes
of their own apart from those that do not. Then what each adds to the light record, in bytes per parameter tensor.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from benchmarks.architectures import NETWORKS
from benchmarks.measure import Effort, compare, take_turns, tracked
from benchmarks.networks import TINY, Network
from benchmarks.results import kept, make_parser, parse, report

DEAR = ("AlphaOwnBatch", "BatchSharpness", "DirectionalSharpness", "PreconditionedSharpness")
"""They repeat the step's samples."""
CHOSEN = ("cifar10_3c3d", "transformer")
PAPER = ("CABS", "EarlyStopping", "MeanGSNR", "Parameters", "TICTrace", "Time")
"""The 2021 tool had them; no named configuration has."""
TOGETHER = "all without a pass of their own"
LIMIT = 15.0


def find_instruments() -> list[str]:
    from cockpit_core.quantities import ALL

    return [name for name, kind in ALL.items() if not kind.configurations and name not in PAPER]


def economy_and(*names: str) -> list[Any]:
    from cockpit_core import quantities

    return [*quantities.configuration("economy"), *(quantities.ALL[name]() for name in names)]


def measure_network(network: Network, names: Sequence[str], effort: Effort) -> dict[str, Any]:
    """The dear ones apart and with fewer rounds, so that the others do not wait for them."""
    cheap = {name: (name,) for name in names if name not in DEAR}
    dear = {name: (name,) for name in names if name in DEAR}
    rows = time_together(network, cheap, effort) if cheap else {}
    if cheap:  # by itself: what fifteen other trainings leave in the caches makes every step slow
        rows |= {TOGETHER: time_together(network, {TOGETHER: tuple(cheap)}, effort)[TOGETHER]}
    few = replace(effort, rounds=max(1, effort.rounds // 4), least=1, warm=1)
    return rows | (
        {name: row for name, row in time_together(network, dear, few).items() if name in dear} if dear else {}
    )


def time_together(network: Network, chosen: dict[str, tuple[str, ...]], effort: Effort) -> dict[str, Any]:
    with ExitStack() as stack:
        contestants: dict[str, Any] = {"untracked": network.train("Adam")}
        contestants["economy"] = stack.enter_context(tracked(network.train("Adam"), config=economy_and()))
        for title, own in chosen.items():
            contestants[title] = stack.enter_context(tracked(network.train("Adam"), config=economy_and(*own)))
        return compare(take_turns(contestants, network.batch, effort), "economy")


def count_columns(names: Sequence[str]) -> dict[str, int]:
    """Layer-wise numbers of each instrument in the light record, its parts included: four bytes per tensor each."""
    network = NETWORKS["transformer"]
    with tracked(network.train("Adam"), config=economy_and(*names)) as training:
        for _ in range(2):
            training(*network.batch(8))
        data = training.run.data
        return {name: sum(has_layers(data, own) for own in data.names if own.split("/")[0] == name) for name in names}


def has_layers(data: Any, name: str) -> bool:
    for layer in data.layers:
        try:
            if len(data.scalars(name, layer)[0]):
                return True
        except KeyError:
            continue
    return False


def measure(options: Namespace) -> None:
    names = find_instruments()[:4] if options.quick else find_instruments()
    networks: dict[str, Any] = {}
    content: dict[str, Any] = {"networks": networks, "limit": LIMIT, "bytes": {}}
    chosen = [TINY] if options.quick else [NETWORKS[name] for name in options.networks]
    with kept("instruments", content, options) as save:
        for network in chosen:
            if options.alone:
                names = [name for name in names if name in options.alone]
            networks[network.name] = measure_network(
                network, names, Effort(options.rounds, seconds=options.seconds, least=3, clock=options.clock)
            )
            report(f"{network.name}, batch {network.batch_size}; base: an economy step", networks[network.name])
            save()
        if not options.alone:
            content["bytes"] |= {name: 4 * count for name, count in count_columns(names).items()}
            for name, size in content["bytes"].items():
                print(f"  {name:<24} {size:4} bytes per tensor")
            save()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, 15)
    parser.add_argument("--networks", nargs="+", choices=tuple(NETWORKS), default=CHOSEN)
    parser.add_argument("--alone", nargs="+", metavar="NAME", help="only these instruments")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each network")
    measure(parse(parser, arguments))


if __name__ == "__main__":
    main()

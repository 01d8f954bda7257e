"""What the instruments beyond the paper add to an economy step: ``python -m benchmarks.instruments``.

Each beside economy, in percent of an economy step (Adam, tracked at every step), and all together: those that cost passes
of their own apart from those that do not. Then what each adds to the light record, in bytes per parameter tensor, on a
network of 600 tensors.
"""

from __future__ import annotations

import tempfile
from argparse import Namespace
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import nn

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
TENSORS = 600


def find_instruments() -> list[str]:
    from cockpit_core.quantities import ALL

    return [name for name, kind in ALL.items() if not kind.configurations and name not in PAPER]


def economy_and(*names: str) -> list[Any]:
    from cockpit_core import quantities

    return [*quantities.configuration("economy"), *(quantities.ALL[name]() for name in names)]


def measure_network(network: Network, names: Sequence[str], effort: Effort) -> dict[str, Any]:
    cheap = [name for name in names if name not in DEAR]
    chosen = {name: (name,) for name in names} | {TOGETHER: tuple(cheap)}
    with ExitStack() as stack:
        contestants: dict[str, Any] = {"untracked": network.train("Adam")}
        contestants["economy"] = stack.enter_context(tracked(network.train("Adam"), config=economy_and()))
        for title, own in chosen.items():
            contestants[title] = stack.enter_context(tracked(network.train("Adam"), config=economy_and(*own)))
        return compare(take_turns(contestants, network.batch, effort), "economy")


def measure_bytes(names: Sequence[str]) -> dict[str, float]:
    """Per parameter tensor and record: the log with the instrument less the log without, both of a few steps."""
    base = log_size(())
    return {name: (log_size((name,)) - base) / TENSORS for name in names}


def log_size(names: Sequence[str], steps: int = 4) -> float:
    import cockpit_core

    torch.manual_seed(0)
    layers = [part for _ in range(TENSORS // 2) for part in (nn.Linear(4, 4), nn.Tanh())]
    model, loss_fn = nn.Sequential(*layers), nn.CrossEntropyLoss()
    optimizer, sizes = torch.optim.Adam(model.parameters(), lr=1e-3), []
    with tempfile.TemporaryDirectory() as folder:
        config = [cockpit_core.quantities.Loss(), *economy_and(*names)[-len(names) :]] if names else ["Loss"]
        run = cockpit_core.track(model, loss_fn, optimizer, Path(folder) / "run", config=config)
        for _ in range(steps):
            optimizer.zero_grad()
            loss_fn(model(torch.randn(8, 4)), torch.randint(0, 4, (8,))).backward()
            optimizer.step()
            run.flush() if hasattr(run, "flush") else None
            sizes.append(sum(path.stat().st_size for path in (Path(folder) / "run").rglob("*") if path.is_file()))
        run.close()
    return (sizes[-1] - sizes[1]) / (steps - 2)


def measure(options: Namespace) -> None:
    names = find_instruments()
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
            content["bytes"] |= measure_bytes(names[:2] if options.quick else names)
            for name, size in content["bytes"].items():
                print(f"  {name:<24} {size:6.1f} bytes per tensor")
            save()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, 15)
    parser.add_argument("--networks", nargs="+", choices=tuple(NETWORKS), default=CHOSEN)
    parser.add_argument("--alone", nargs="+", metavar="NAME", help="only these instruments")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each network")
    measure(parse(parser, arguments))


if __name__ == "__main__":
    main()

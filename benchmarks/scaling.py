"""How the cost of a tracked step grows: ``python -m benchmarks.scaling``.

"economy" at every step, against batch size (the CIFAR-10 network), width and depth (a plain network), and sequence
length (two transformer layers). The untracked step of the same size is the unit.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from benchmarks.measure import Effort, Training, compare, take_turns, tracked
from benchmarks.networks import SmallTransformer, classify, make_dense, three_conv_three_dense
from benchmarks.results import kept, make_parser, parse, report


@dataclass(frozen=True)
class Axis:
    """``build(size)`` -> the network, the shape of one input, and the batch size."""

    name: str
    sizes: tuple[int, ...]
    build: Callable[[int], tuple[nn.Module, tuple[int, ...], int]]


AXES = (
    Axis("batch size", (8, 16, 32, 64, 128, 256, 512), lambda n: (three_conv_three_dense(), (3, 32, 32), n)),
    Axis("width, in multiples of 128", (1, 2, 4, 8), lambda n: (make_dense(256, *[128 * n] * 3, 10), (256,), 128)),
    Axis("depth, in layers", (2, 4, 8, 16, 32), lambda n: (make_dense(*[256] * n, 10), (256,), 128)),
    Axis("sequence length", (8, 16, 32, 64, 128, 256), lambda n: (SmallTransformer(), (n, 48), 32)),
)


def measure_at(axis: Axis, size: int, effort: Effort) -> dict[str, Any]:
    torch.manual_seed(0)
    (model, shape, batch), (twin, _, _) = axis.build(size), axis.build(size)
    with tracked(Training(twin), config="economy") as training:
        contestants = {"untracked": Training(model), "economy": training}
        return compare(take_turns(contestants, lambda: classify(shape, 10)(batch), effort))


def draw(content: dict[str, Any], options: Namespace) -> None:
    from benchmarks.figures import figure

    results = {name: rows for name, rows in content["axes"].items() if rows}
    if not results:
        return
    with figure(options.results, "scaling", columns=len(results), size=(2.6 * len(results), 2.8)) as all_axes:
        all_axes = [all_axes] if len(results) == 1 else all_axes
        for axes, (name, rows) in zip(all_axes, results.items(), strict=True):
            sizes = [int(size) for size in rows]
            for contestant in ("untracked", "economy"):
                seconds = [row[contestant]["seconds"] for row in rows.values()]
                low, median, high = ([1e3 * s[key] for s in seconds] for key in ("low", "median", "high"))
                axes.plot(sizes, median, marker="o", markersize=3, label=contestant)
                axes.fill_between(sizes, low, high, alpha=0.2)
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_xlabel(name)
        all_axes[0].set_ylabel("ms per step")
        all_axes[0].legend(frameon=False)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(make_parser(__doc__, rounds=7), arguments)
    effort = Effort(options.rounds, least=min(3, options.rounds), seconds=3, clock=options.clock)
    results: dict[str, dict[str, Any]] = {}
    with kept("scaling", {"axes": results}, options, draw) as save:
        for axis in AXES[2:] if options.quick else AXES:
            results[axis.name] = {}
            for size in axis.sizes[: 1 if options.quick else None]:
                results[axis.name][str(size)] = rows = measure_at(axis, size, effort)
                report(f"{axis.name}: {size}", rows)
                save()


if __name__ == "__main__":
    main()

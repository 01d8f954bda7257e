"""Up to which share of nonzero entries kernels that skip zeros are faster than torch: ``python -m benchmarks.blocks``.

For columns through a block of convolution and ReLU (``DENSE`` in curvature/blocks.py), for products with the Hessian
(curvature/trunk.py), and for the squares of a convolution's individual gradients at all its positions (curvature/rules.py).
Numbers are times of the kernels as multiples of torch's; both take turns. Products are the making of an operator and four of
them, whether ``trunk._saving`` would choose the kernels or not.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.measure import CLOCKS
from benchmarks.results import make_parser, parse
from cockpit_core.curvature import Point, blocks, diagonal, trunk
from cockpit_core.curvature.operators import HessianOperator
from cockpit_core.kernels.native import columns

SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)
BATCH, CLASSES = 32, 10


@dataclass(frozen=True)
class Shape:
    channels: int
    rows: int
    size: int
    pooling: int = 0


SHAPES = (
    Shape(3, 16, 32, 2), Shape(16, 32, 16, 2), Shape(64, 96, 12, 2), Shape(16, 32, 16), Shape(64, 96, 12), Shape(128, 128, 6),
)  # fmt: skip


def make_point(shape: Shape, share: float) -> Point:
    """Two convolutions whose ReLUs let this share of their outputs through, before a pooling if there is one."""
    torch.manual_seed(0)
    first, second = (nn.Conv2d(c, shape.rows, 3, padding=1) for c in (shape.channels, shape.rows))
    behind = [nn.ReLU(), nn.MaxPool2d(shape.pooling) if shape.pooling else nn.Identity()]
    model = nn.Sequential(first, *behind, second, *behind, nn.AdaptiveAvgPool2d(2), nn.Flatten())
    model.append(nn.Linear(4 * shape.rows, CLASSES))
    x = torch.randn(BATCH, shape.channels, shape.size, shape.size)
    with torch.no_grad():
        for number in (0, 3):
            found = model[:number](x)
            _shift(model[number], found, share)
    outputs, labels = model(x), torch.arange(BATCH) % CLASSES

    def loss_of(values: Tensor) -> Tensor:
        return nn.functional.cross_entropy(values, labels)

    return Point(loss_of(outputs), dict(model.named_parameters()), BATCH, outputs, loss_of)


def _shift(convolution: nn.Module, inputs: Tensor, share: float) -> None:
    outputs = convolution(inputs).movedim(1, 0).flatten(1)
    limits = outputs.quantile(1 - share, 1) if share < 1 else outputs.amin(1) - 1
    convolution.bias.sub_(limits)  # type: ignore[operator]


def compare(work: Callable[[], object], options: Namespace) -> float:
    """The median time with the kernels, over that without."""
    times: dict[bool, list[float]] = {True: [], False: []}
    clock = CLOCKS[options.clock]
    for turn in range(options.rounds + 1):
        for native in times:
            with mock.patch.object(columns, "find_library", columns.find_library if native else lambda: None):
                start = clock()
                work()
                if turn:
                    times[native].append(clock() - start)
    return float(np.median(times[True]) / np.median(times[False]))


def measure(shape: Shape, share: float, options: Namespace) -> dict[str, float]:
    point = make_point(shape, share)
    vector = [torch.randn_like(p) for p in point.trainable.values()]

    def multiply() -> None:
        operator = HessianOperator(point)
        for _ in range(4):
            operator.matvec(vector)
        operator.close()

    found = {}
    with mock.patch.object(trunk, "DENSE", 1.0), mock.patch.object(trunk, "_saving", return_value=1.0):
        found["products"] = compare(multiply, options)
    with mock.patch.object(blocks.find_blocks, "__defaults__", (1.0,)):
        found["columns"] = compare(lambda: diagonal(point, "ggn"), options)
    with mock.patch.object(blocks.find_blocks, "__defaults__", (0.0,)):
        found["squares alone"] = compare(lambda: diagonal(point, "ggn"), options)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(make_parser(__doc__, rounds=5), arguments)
    for shape in SHAPES[:1] if options.quick else SHAPES:
        print(f"\n{shape.channels} to {shape.rows} channels, {shape.size} x {shape.size}, pooling {shape.pooling}")
        for share in SHARES[:1] if options.quick else SHARES:
            found = measure(shape, share, options)
            print(f"{share:6.0%}  " + "  ".join(f"{name} {ratio:.2f}" for name, ratio in found.items()), flush=True)


if __name__ == "__main__":
    main()

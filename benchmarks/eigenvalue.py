"""Hessian-vector products, and time, to the largest eigenvalue: ``python -m benchmarks.eigenvalue``.

"To 1e-3" counts the products after which the relative error stays below 1e-3, as seen by someone who knows the answer
(Lanczos to a residual of 1e-5), and the seconds until then; "to its stop" counts those until the method itself is
content, with the error it then has. Warm starts come from the step before. scipy's ``eigsh`` shows no value on its way:
it counts at its stop, at a tolerance of 1e-3.

Then how often tracking misses: small networks train on digits, each tracked value starts from the one before, and is
compared with 60 products from a start that knows nothing. Whoever changes when Lanczos stops looks here.
"""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh
from sklearn.datasets import load_digits
from torch import Tensor, nn

from benchmarks.measure import CLOCKS, Progress, Training
from benchmarks.networks import PAPER, Network
from benchmarks.results import kept, make_parser, parse
from cockpit_core.curvature import HessianOperator, Point, largest_eigenvalue
from cockpit_core.curvature.operators import flatten, unflatten

GOAL = 1e-3
LIMIT = 100  # products; the 2021 tool gives up there, too
Start = list[Tensor] | None


class Watched:
    """An operator that remembers its products, and after how many seconds each was there."""

    def __init__(self, operator: HessianOperator, clock: str):
        self.operator, self.parameters, self.now = operator, operator.parameters, CLOCKS[clock]
        self.vectors: list[Tensor] = []
        self.images: list[Tensor] = []
        self.seconds: list[float] = []
        self.began = self.now()

    def matvec(self, vector: Sequence[Tensor]) -> list[Tensor]:
        image = self.operator.matvec(vector)
        self.seconds.append(self.now() - self.began)
        self.vectors.append(flatten(vector).clone())
        self.images.append(flatten(image).clone())
        return image

    def matmat(self, vectors: Sequence[Tensor]) -> list[Tensor]:
        return self.operator.matmat(vectors)

    def close(self) -> None:
        self.operator.close()

    def multiply(self, vector: np.ndarray) -> np.ndarray:
        parts = unflatten(torch.from_numpy(vector.reshape(-1)).float(), self.parameters)
        return flatten(self.matvec(parts)).numpy()

    def project(self) -> Tensor:
        """All inner products of vectors with images, in float64."""
        return (torch.stack(self.vectors) @ torch.stack(self.images).T).double()


@dataclass(frozen=True)
class Solution:
    """products: until the method was content. values: of the eigenvalue after that many products."""

    products: int
    values: dict[int, float]


def lanczos(operator: Watched, start: Start, truth: float) -> Solution:
    """Its value after k products is the largest eigenvalue of the matrix in its first k vectors (no restart: there are
    fewer than 32).
    """
    pair = largest_eigenvalue(operator, start, torch.Generator().manual_seed(1))
    projected = operator.project()
    values = {k: float(torch.linalg.eigvalsh(projected[:k, :k])[-1]) for k in range(1, min(pair.products, 32))}
    return Solution(pair.products, {**values, pair.products: pair.value})


def power_iteration(operator: Watched, start: Start, truth: float) -> Solution:
    """Is content when the Rayleigh quotient changes by less than 1e-3, as the 2021 tool is; goes on to the goal."""
    vector = flatten(start) if start else make_random(operator)
    values: dict[int, float] = {}
    last, stopped = math.inf, None
    while len(values) < LIMIT and (stopped is None or abs(last - truth) > GOAL * abs(truth)):
        vector = vector / vector.norm()
        image = flatten(operator.matvec(unflatten(vector, operator.parameters)))
        value, vector = float(vector @ image), image
        values[len(values) + 1] = value
        if stopped is None and abs(value - last) <= GOAL * abs(value):
            stopped = len(values)
        last = value
    return Solution(stopped or LIMIT, values)


def arpack(operator: Watched, start: Start, truth: float) -> Solution:
    """Shows no value on its way."""
    first = (flatten(start) if start else make_random(operator)).numpy()
    linear = LinearOperator((first.size, first.size), matvec=operator.multiply, dtype=np.float32)
    try:
        value = float(eigsh(linear, k=1, which="LA", v0=first, tol=GOAL, maxiter=5)[0][0])
    except ArpackNoConvergence:
        value = math.nan
    return Solution(len(operator.seconds), {len(operator.seconds): value})


def make_random(operator: Watched) -> Tensor:
    return torch.randn(sum(p.numel() for p in operator.parameters), generator=torch.Generator().manual_seed(1))


METHODS: dict[str, Callable[[Watched, Start, float], Solution]] = {
    "Lanczos, as tracked": lanczos,
    "power iteration": power_iteration,
    "scipy eigsh": arpack,
}


def make_operator(training: Training, inputs: Tensor, labels: Tensor) -> HessianOperator:
    assert training.loss_fn is not None
    loss = training.loss_fn(training.model(inputs), labels)
    return HessianOperator(Point(loss, dict(training.model.named_parameters()), len(inputs)))


def run_method(name: str, watched: Watched, start: Start, truth: float) -> dict[str, Any]:
    solution = METHODS[name](watched, start, truth)
    errors = {k: abs(value - truth) / abs(truth) for k, value in solution.values.items()}
    reached = find_reached(errors)
    return {
        "products to its stop": solution.products,
        "error there": errors[solution.products],
        "products to 1e-3": reached,
        "seconds to 1e-3": None if reached is None else watched.seconds[reached - 1],
        "errors": errors,
    }


def find_reached(errors: dict[int, float]) -> int | None:
    """From which product on the error stays below the goal."""
    reached = None
    for k in reversed(errors):
        if not errors[k] <= GOAL:
            break
        reached = k
    return reached


def measure_points(network: Network, options: Namespace, rows: dict[str, list[dict[str, Any]]]) -> None:
    """At some points of a training: solve at one step, train on, and solve again, cold and warm, on another batch."""
    training = network.train(learning_rate=0.05)
    total, progress = options.rounds * 2 * len(METHODS), Progress(network.name)
    for point in range(options.rounds):
        for _ in range(1 if options.quick else 10):
            training(*network.batch())
        batch, following = network.batch(), network.batch()
        before = largest_eigenvalue(make_operator(training, *batch))
        training(*batch)
        operator = make_operator(training, *following)
        truth = largest_eigenvalue(operator, before.start, tolerance=1e-5, max_products=LIMIT, max_vectors=80)
        for k, name in enumerate(METHODS):
            for kind in ("cold", "warm"):
                progress.say(2 * (point * len(METHODS) + k), total)
                start = None if kind == "cold" else before.start if name.startswith("Lanczos") else before.vector
                watched = Watched(operator, options.clock)
                rows.setdefault(f"{name}, {kind}", []).append(run_method(name, watched, start, truth.value))
        operator.close()
    progress.clear()


# ---- how often tracking misses ---------------------------------------------------------------------------------------

SMALL: dict[str, tuple[Callable[[], nn.Module], float, int]] = {
    "tanh": (lambda: nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10)), 0.1, 32),
    "sigmoid": (
        lambda: nn.Sequential(nn.Linear(64, 64), nn.Sigmoid(), nn.Linear(64, 64), nn.Sigmoid(), nn.Linear(64, 10)),
        0.5,
        32,
    ),
    "layer norm": (
        lambda: nn.Sequential(
            nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 64), nn.GELU(), nn.Linear(64, 10)
        ),
        0.1,
        128,
    ),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)),
            nn.Conv2d(1, 16, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 16, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(144, 10),
        ),
        0.1,
        64,
    ),
}
"""Network, learning rate, batch size."""


def measure_training(options: Namespace) -> dict[str, Any]:
    """The first value of each training, which starts cold, counts too."""
    digits = load_digits()
    data = torch.tensor(digits.data, dtype=torch.float32)
    data = (data - data.mean()) / data.std()
    seeds, points, intervals = (1, 2, (1,)) if options.quick else (4, 15, (1, 16))
    rows: dict[str, dict[str, Any]] = {}
    for name, (make, rate, batch) in SMALL.items():
        found: list[tuple[float, int]] = []
        for seed, interval in product(range(seeds), intervals):
            torch.manual_seed(seed)
            found += follow(make(), data, torch.tensor(digits.target), rate, batch, interval, points)
        errors = np.array([error for error, _ in found])
        rows[name] = {
            "points": len(found),
            "products": float(np.mean([products for _, products in found])),
            "largest error": float(errors.max()),
            "errors above 1e-3": int((errors > GOAL).sum()),
        }
        print(f"  {name:28s} {rows[name]}", flush=True)
    return rows


def follow(
    model: nn.Module, data: Tensor, labels: Tensor, rate: float, batch: int, interval: int, points: int
) -> list[tuple[float, int]]:
    """Relative error and products of each tracked value."""
    optimizer, found, start = torch.optim.SGD(model.parameters(), lr=rate), list[tuple[float, int]](), None
    generator = torch.Generator().manual_seed(0)
    for step in range(points * interval):
        chosen = torch.randint(0, len(data), (batch,))
        loss = nn.functional.cross_entropy(model(data[chosen]), labels[chosen])
        if step % interval == 0:
            operator = HessianOperator(Point(loss, dict(model.named_parameters()), batch))
            pair = largest_eigenvalue(operator, start, generator)
            other = torch.Generator().manual_seed(1000 + step)
            truth = largest_eigenvalue(operator, None, other, tolerance=1e-6, min_products=60, max_vectors=60).value
            start = pair.start
            found.append((abs(pair.value - truth) / abs(truth), pair.products))
            operator.close()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return found


# ---- results ---------------------------------------------------------------------------------------------------------


def average(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the points, and the curve of the last one."""
    reached = [row["products to 1e-3"] for row in found]
    hit = [row for row in found if row["products to 1e-3"] is not None]
    return {
        "products to its stop": float(np.median([row["products to its stop"] for row in found])),
        "largest error there": max(row["error there"] for row in found),
        "products to 1e-3": float(np.median([r["products to 1e-3"] for r in hit])) if len(hit) == len(found) else None,
        "seconds to 1e-3": float(np.median([r["seconds to 1e-3"] for r in hit])) if len(hit) == len(found) else None,
        "missed at": f"{reached.count(None)} of {len(reached)} points",
        "errors": found[-1]["errors"],
    }


def draw(content: dict[str, Any], options: Namespace) -> None:
    """Relative error after each product, at the last point measured."""
    from benchmarks.figures import COLORS, figure

    found = {name: entry for name, entry in content["networks"].items() if entry["methods"]}
    if not found:
        return
    with figure(options.results, "eigenvalue", columns=len(found), size=(3.3 * len(found) + 2.2, 3.2)) as all_axes:
        for axes, (name, entry) in zip([all_axes] if len(found) == 1 else all_axes, found.items(), strict=True):
            for method, row in entry["methods"].items():
                x, y = [int(k) for k in row["errors"]], [max(e, 1e-8) for e in row["errors"].values()]
                color = COLORS[1 + list(METHODS).index(method.rsplit(",", 1)[0])]
                style = "-" if method.endswith("warm") else ":"
                marker = ("o" if method.endswith("warm") else "x") if len(x) == 1 else None
                axes.plot(x, y, style, marker=marker, color=color, linewidth=1.3, markersize=5, label=method)
            axes.axhline(GOAL, color="black", linewidth=0.8)
            axes.set_yscale("log")
            axes.set_xlabel("Hessian-vector products")
            axes.set_title(name, fontsize=9)
        axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
        (all_axes if len(found) == 1 else all_axes[0]).set_ylabel("relative error of the eigenvalue")


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(make_parser(__doc__, rounds=2), arguments)
    content: dict[str, Any] = {"networks": {}}
    with kept("eigenvalue", content, options, draw) as save:
        for name in ("mnist_logreg",) if options.quick else ("mnist_mlp", "cifar10_3c3d"):
            rows: dict[str, list[dict[str, Any]]] = {}
            try:
                measure_points(PAPER[name], options, rows)
            finally:
                if rows:
                    content["networks"][name] = {"methods": {method: average(each) for method, each in rows.items()}}
                    save()
            print(f"\n{name}", flush=True)
            for method, row in content["networks"][name]["methods"].items():
                shown = {key: value for key, value in row.items() if key != "errors"}
                print(f"  {method:28s} {shown}", flush=True)
        print("\nhow often tracking misses", flush=True)
        content["training"] = measure_training(options)
        save()


if __name__ == "__main__":
    main()

"""Hessian-vector products, and time, to the largest eigenvalue: ``python -m benchmarks.eigenvalue``.

The product is the unit of cost, and the same for all. "to 1e-3" counts the products after which the relative error is
below 1e-3, as seen by someone who knows the answer (Lanczos to a residual of 1e-6); "to its stop" those until the
method itself is content, with the error it then has. Warm starts come from the step before.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh
from torch import Tensor

from benchmarks.measure import Training, make_parser, parse, write_results
from benchmarks.networks import NETWORKS, Network
from cockpit_core.curvature import Eigenpair, HessianOperator, Point, largest_eigenvalue
from cockpit_core.curvature.operators import flatten, unflatten

GOAL = 1e-3
LIMIT = 100  # products; the 2021 tool gives up there, too
Start = list[Tensor] | None


class Counted:
    """An operator that counts its products."""

    def __init__(self, operator: HessianOperator):
        self.operator, self.parameters, self.products = operator, operator.parameters, 0

    def matvec(self, vector: Sequence[Tensor]) -> list[Tensor]:
        self.products += 1
        return self.operator.matvec(vector)

    def matmat(self, vectors: Sequence[Tensor]) -> list[Tensor]:
        return self.operator.matmat(vectors)

    def close(self) -> None:
        self.operator.close()

    def multiply(self, vector: np.ndarray) -> np.ndarray:
        parts = unflatten(torch.from_numpy(vector.reshape(-1)).float(), self.parameters)
        return flatten(self.matvec(parts)).numpy()


def lanczos(operator: Counted, start: Start, truth: float) -> tuple[float, int]:
    """The Ritz value only rises with the products, so that bisection finds the first that is good enough."""
    pair = largest_eigenvalue(operator, start, torch.Generator().manual_seed(1))
    low, high = 0, pair.products if abs(pair.value - truth) <= GOAL * abs(truth) else LIMIT
    stopped = operator.products
    while high - low > 1:
        middle = (low + high) // 2
        generator = torch.Generator().manual_seed(1)
        value = largest_eigenvalue(operator, start, generator, tolerance=0, max_products=middle).value
        low, high = (low, middle) if abs(value - truth) <= GOAL * abs(truth) else (middle, high)
    operator.products = stopped
    return pair.value, high


def power_iteration(operator: Counted, start: Start, truth: float) -> tuple[float, int | None]:
    """Stops when the Rayleigh quotient changes by less than 1e-3, as the 2021 tool does."""
    vector = flatten(start) if start else torch.randn(sum(p.numel() for p in operator.parameters))
    last, stopped, reached = float("inf"), None, None
    while operator.products < LIMIT and (stopped is None or reached is None):
        vector = vector / vector.norm()
        image = flatten(operator.matvec(unflatten(vector, operator.parameters)))
        value, vector = float(vector @ image), image
        if reached is None and abs(value - truth) <= GOAL * abs(truth):
            reached = operator.products
        if stopped is None and abs(value - last) <= GOAL * abs(value):
            stopped = value, operator.products
        last = value
    result, operator.products = stopped or (last, operator.products)
    return result, reached


def arpack(operator: Counted, start: Start, truth: float) -> tuple[float, int | None]:
    size = sum(p.numel() for p in operator.parameters)
    linear = LinearOperator((size, size), matvec=operator.multiply, dtype=np.float32)
    first = flatten(start).numpy() if start else torch.randn(size).numpy()
    try:
        value = float(eigsh(linear, k=1, which="LA", v0=first, tol=GOAL, maxiter=20)[0][0])
    except ArpackNoConvergence:
        return float("nan"), None
    return value, operator.products if abs(value - truth) <= GOAL * abs(truth) else None


METHODS: dict[str, Callable[[Counted, Start, float], tuple[float, int | None]]] = {
    "Lanczos, as tracked": lanczos,
    "power iteration": power_iteration,
    "scipy eigsh": arpack,
}


def make_operator(training: Training, inputs: Tensor, labels: Tensor) -> HessianOperator:
    loss = training.loss_fn(training.model(inputs), labels)
    return HessianOperator(Point(loss, dict(training.model.named_parameters()), len(inputs)))


def run_method(name: str, operator: HessianOperator, start: Start, truth: float) -> dict[str, Any]:
    counted = Counted(operator)
    torch.manual_seed(1)
    began = time.perf_counter()
    value, reached = METHODS[name](counted, start, truth)
    seconds = time.perf_counter() - began
    error = abs(value - truth) / abs(truth)
    return {"products to its stop": counted.products, "error": error, "products to 1e-3": reached, "seconds": seconds}


def time_product(operator: HessianOperator, repeats: int) -> float:
    vector = [torch.randn_like(p) for p in operator.parameters]
    times = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        operator.matvec(vector)
        times.append(time.perf_counter() - began)
    return float(np.median(times[1:]))


def find_truth(operator: HessianOperator, start: Start, products: int) -> Eigenpair:
    return largest_eigenvalue(operator, start, tolerance=1e-6, max_products=products, max_vectors=80)


def measure(network: Network, options: Namespace) -> dict[str, Any]:
    """At some points of a training: solve at one step, train on, and solve again, cold and warm, on another batch."""
    training = Training(network.make(), learning_rate=0.05)
    rows: dict[str, list[dict[str, Any]]] = {}
    seconds = []
    for _ in range(options.rounds):
        for _ in range(1 if options.quick else 10):
            training(*network.batch())
        batch, following = network.batch(), network.batch()
        before = largest_eigenvalue(make_operator(training, *batch))
        training(*batch)
        operator = make_operator(training, *following)
        truth = find_truth(operator, before.start, LIMIT)
        seconds.append(time_product(operator, 3))
        for name in METHODS:
            for kind, start in (
                ("cold", None),
                ("warm", before.start if name.startswith("Lanczos") else before.vector),
            ):
                rows.setdefault(f"{name}, {kind}", []).append(run_method(name, operator, start, truth.value))
        operator.close()
    product = float(np.median(seconds))
    return {"seconds per product": product, "methods": {name: average(found, product) for name, found in rows.items()}}


def average(found: list[dict[str, Any]], product: float) -> dict[str, Any]:
    """Medians over the points. Seconds to 1e-3 follow from the products: orthogonalising costs next to nothing."""
    reached = [row["products to 1e-3"] for row in found]
    everywhere = None not in reached
    needed = float(np.median(reached)) if everywhere else None
    return {
        "products to its stop": float(np.median([row["products to its stop"] for row in found])),
        "largest error there": max(row["error"] for row in found),
        "products to 1e-3": needed,
        "seconds to 1e-3": needed * product if needed is not None else None,
        "missed at": f"{reached.count(None)} of {len(reached)} points",
    }


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(make_parser(__doc__, rounds=2), arguments)
    results: dict[str, Any] = {}
    for name in ("mnist_logreg",) if options.quick else ("mnist_mlp", "cifar10_3c3d"):
        results[name] = measure(NETWORKS[name], options)
        print(f"\n{name}, {1e3 * results[name]['seconds per product']:.0f} ms per product", flush=True)
        for method, row in results[name]["methods"].items():
            print(f"  {method:28s} {row}", flush=True)
        write_results("eigenvalue", {"networks": results}, options)


if __name__ == "__main__":
    main()

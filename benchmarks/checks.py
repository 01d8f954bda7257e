"""What the checks cost that keep numbers from being wrong: ``python -m benchmarks.checks``.

In percent of an economy step on 3C3D (batch of 128, SGD, tracked at every step), all steps from the first on added up, in
processor time of one thread. "rows": whose rows are whose, followed through the graph at the first steps and every
64th. "sums": do the contributions of each layer add up to its gradient? (With the one transfer of all vectors, which is
needed anyway.) "long sums": what adding float32 in pieces takes more than torch's own functions, both on the same
arguments in turns. The symmetry check belongs to Lanczos, which economy does not run.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from benchmarks.measure import Training, tracked
from cockpit_core.engine import broadcast, reducing, statistics
from cockpit_core.engine.samples import following
from cockpit_core.problems.cifar import make_3c3d

LIMIT = 3.0


@contextmanager
def replaced(holder: Any, name: str, make: Callable[[Callable], Callable]) -> Iterator[None]:
    original = getattr(holder, name)
    setattr(holder, name, make(original))
    try:
        yield
    finally:
        setattr(holder, name, original)


def timed(spent: Counter, label: str) -> Callable[[Callable], Callable]:
    def make(original: Callable) -> Callable:
        def run(*args: Any, **kwargs: Any) -> Any:
            start = time.process_time()
            try:
                return original(*args, **kwargs)
            finally:
                spent[label] += time.process_time() - start

        return run

    return make


def beside(spent: Counter, label: str, plain: Callable) -> Callable[[Callable], Callable]:
    """Time of the original less that of ``plain``. The turns change, so that neither always finds the memory warm."""
    turns = Counter[str]()

    def make(original: Callable) -> Callable:
        def run(*args: Any) -> Any:
            turns["all"] += 1
            found, seconds = {}, {}
            for name in ("own", "plain") if turns["all"] % 2 else ("plain", "own"):
                start = time.process_time()
                found[name] = (original if name == "own" else plain)(*args)
                seconds[name] = time.process_time() - start
            spent[label] += seconds["own"] - seconds["plain"]
            spent["beside"] += seconds["plain"]
            return found["own"]

        return run

    return make


def measure(steps: int, batch: int) -> dict[str, float]:
    """Percent of an economy step, by check."""
    torch.manual_seed(0)
    spent: Counter = Counter()
    training = Training(make_3c3d())
    with (
        tracked(training, config="economy"),
        replaced(following.Follower, "follow", timed(spent, "rows")),
        replaced(broadcast, "outline", timed(spent, "rows")),
        replaced(reducing, "judge", timed(spent, "sums")),
        replaced(statistics, "row_squares", beside(spent, "long sums", lambda G: G.square().sum(1))),
        replaced(statistics, "row_products", beside(spent, "long sums", lambda G, V: G @ V)),
    ):
        for _ in range(steps):
            inputs, labels = torch.randn(batch, 3, 32, 32), torch.randint(0, 10, (batch,))
            timed(spent, "step")(training)(inputs, labels)
    whole = spent.pop("step") - spent.pop("beside", 0.0)
    return {name: 100 * seconds / whole for name, seconds in spent.items()} | {"ms": 1000 * whole / steps}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=128)
    parser.add_argument("--batch", type=int, default=128)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = measure(options.steps, options.batch)
    print(f"economy step {found.pop('ms'):.1f} ms of processor time, {options.steps} steps")
    for name, percent in sorted(found.items()):
        print(f"  {name:10} {percent:6.2f} %")
    total = sum(found.values())
    print(f"  {'together':10} {total:6.2f} %, limit {LIMIT} %: {'met' if total <= LIMIT else 'NOT met'}")


if __name__ == "__main__":
    main()

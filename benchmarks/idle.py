"""What a step costs that is not scheduled, in microseconds: ``python -m benchmarks.idle``.

For a loss module, for a loss that is a function, and for a model that returns its loss. On a network so small that its step
takes a fraction of a millisecond, because microseconds would drown in a larger one. Blocks of steps take turns; a block
counts by its fastest step, which is the one that nothing disturbed. The untracked step runs while no run is alive.
"""

from __future__ import annotations

import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.measure import CLOCKS, Progress, summarise
from benchmarks.results import make_parser, parse, write_results

BLOCK, ROUNDS_IN_A_ROW = 30, 10
NEVER = 10**9


class WithLoss(nn.Linear):
    """Returns ``(logits, loss)``, as nanoGPT does."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        logits = super().forward(x)
        return logits, F.cross_entropy(logits, y)


KINDS: dict[str, Callable[[Any, Any, Tensor, Tensor], Tensor]] = {
    "loss module": lambda model, loss_fn, x, y: loss_fn(model(x), y),
    "function": lambda model, loss_fn, x, y: F.cross_entropy(model(x), y),
    "loss of the model": lambda model, loss_fn, x, y: model(x, y)[1],
}


class Loop:
    """One training step, again and again."""

    def __init__(self, kind: str):
        torch.manual_seed(0)
        self.loss = KINDS[kind]
        self.model = WithLoss(16, 4) if kind == "loss of the model" else nn.Linear(16, 4)
        self.loss_fn = nn.CrossEntropyLoss() if kind == "loss module" else None
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.batch = torch.rand(8, 16), torch.randint(0, 4, (8,))

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.loss(self.model, self.loss_fn, *self.batch).backward()
        self.optimizer.step()

    def fastest(self, now: Callable[[], float]) -> float:
        times = []
        for _ in range(BLOCK):
            start = now()
            self.step()
            times.append(now() - start)
        return min(times)

    @contextmanager
    def tracked(self) -> Iterator[None]:
        import cockpit_core

        with tempfile.TemporaryDirectory() as folder:
            logdir, never = Path(folder) / "run", {"config": "full", "schedule": NEVER}
            with cockpit_core.track(self.model, self.loss_fn, self.optimizer, logdir, on_error="raise", **never):  # type: ignore[arg-type]
                yield


def measure(kind: str, options: Namespace) -> dict[str, Any]:
    """In turns: some rounds without a run, some with one that has nothing to do."""
    now, extra, untracked = CLOCKS[options.clock], list[float](), list[float]()
    progress = Progress(kind)
    while len(extra) < options.rounds:
        progress.say(len(extra), options.rounds)
        loop = Loop(kind)
        plain = [loop.fastest(now) for _ in range(1 + ROUNDS_IN_A_ROW)][1:]
        with loop.tracked():
            idle = [loop.fastest(now) for _ in range(1 + ROUNDS_IN_A_ROW)][1:]
        untracked += [1e6 * seconds for seconds in plain]
        extra += [1e6 * (a - b) for a, b in zip(idle, plain, strict=True)]
    return {"extra microseconds": summarise(extra), "untracked microseconds": summarise(untracked)}


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(make_parser(__doc__, rounds=200), arguments)
    kinds = {}
    for kind in KINDS:
        kinds[kind] = measure(kind, options)
        more = kinds[kind]["extra microseconds"]["median"]
        print(f"a step that is not scheduled costs {more:.1f} microseconds more ({kind})")
    write_results("idle", {**kinds["loss module"], "kinds": kinds, "rounds": options.rounds}, options)


if __name__ == "__main__":
    main()

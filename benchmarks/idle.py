"""What a step costs that is not scheduled, in microseconds: ``python -m benchmarks.idle``.

On a network so small that its step takes a fraction of a millisecond, because microseconds would drown in a larger one.
Blocks of steps take turns; a block counts by its fastest step, which is the one that nothing disturbed.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence

import torch
from torch import nn

from benchmarks.measure import CLOCKS, Batch, Progress, Step, Training, summarise, tracked
from benchmarks.results import make_parser, parse, write_results

BLOCK = 30
NEVER = 10**9


def fastest(step: Step, batch: Batch, now: Callable[[], float]) -> float:
    times = []
    for _ in range(BLOCK):
        start = now()
        step(*batch)
        times.append(now() - start)
    return min(times)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(make_parser(__doc__, rounds=200), arguments)
    now = CLOCKS[options.clock]
    batch = torch.rand(8, 16), torch.randint(0, 4, (8,))
    plain = Training(nn.Linear(16, 4))
    seconds: dict[str, list[float]] = {"untracked": [], "idle": []}
    progress = Progress("rounds")
    with tracked(Training(nn.Linear(16, 4)), config="full", schedule=NEVER) as idle:
        for step in (plain, idle, plain, idle):
            fastest(step, batch, now)
        try:
            for turn in range(options.rounds):
                progress.say(turn, options.rounds)
                seconds["untracked"].append(fastest(plain, batch, now))
                seconds["idle"].append(fastest(idle, batch, now))
        finally:
            write_down(seconds, options)


def write_down(seconds: dict[str, list[float]], options: Namespace) -> None:
    extra = [1e6 * (a - b) for a, b in zip(seconds["idle"], seconds["untracked"], strict=False)]
    if not extra:
        return
    plain = [1e6 * s for s in seconds["untracked"]]
    result = {"extra microseconds": summarise(extra), "untracked microseconds": summarise(plain)}
    print(f"a step that is not scheduled costs {result['extra microseconds']['median']:.1f} microseconds more")
    write_results("idle", {**result, "rounds": len(extra)}, options)


if __name__ == "__main__":
    main()

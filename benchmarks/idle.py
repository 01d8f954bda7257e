"""What a step costs that is not scheduled, in microseconds: ``python -m benchmarks.idle``.

On a network so small that its step takes a fraction of a millisecond, because microseconds would drown in a larger one.
Blocks of steps take turns; a block counts by its fastest step, which is the one that nothing disturbed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import nn

from benchmarks.measure import CLOCKS, Batch, Step, Training, make_parser, parse, summarise, tracked, write_results

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
    with tracked(Training(nn.Linear(16, 4)), config="full", schedule=NEVER) as idle:
        for step in (plain, idle, plain, idle):
            fastest(step, batch, now)
        for _ in range(options.rounds):
            seconds["untracked"].append(fastest(plain, batch, now))
            seconds["idle"].append(fastest(idle, batch, now))
    extra = 1e6 * (np.array(seconds["idle"]) - np.array(seconds["untracked"]))
    result = {
        "extra microseconds": summarise(list(extra)),
        "untracked microseconds": summarise([1e6 * s for s in seconds["untracked"]]),
    }
    print(f"a step that is not scheduled costs {result['extra microseconds']['median']:.1f} microseconds more")
    write_results("idle", result, options)


if __name__ == "__main__":
    main()

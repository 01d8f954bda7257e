"""Where the time of tracking goes, by kind of work; shared work is split honestly among those who asked for it."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any


class Clock:
    """Seconds spent on each kind of work within one step ("form", "norms", "histogram", "project gradient", ...)."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    def timed(self, work: str, function: Callable[..., Any], *args: Any) -> Any:
        start = time.perf_counter()
        try:
            return function(*args)
        finally:
            self.seconds[work] += time.perf_counter() - start

    def timed_shares(self, shares: dict[str, float], function: Callable[..., Any], *args: Any) -> Any:
        start = time.perf_counter()
        try:
            return function(*args)
        finally:
            elapsed = time.perf_counter() - start
            for work, share in shares.items():
                self.seconds[work] += elapsed * share

    def reset(self) -> dict[str, float]:
        seconds, self.seconds = dict(self.seconds), defaultdict(float)
        return seconds


def split_costs(seconds: dict[str, float], users: dict[str, list[str]], total: float) -> dict[str, float]:
    """Costs by quantity. ``users`` maps a kind of work to the quantities that needed it; "form" (forming individual
    gradients) is shared by all kinds of work that read formed gradients; what is left of ``total`` is "shared"."""
    costs: dict[str, float] = defaultdict(float)
    for work, spent in seconds.items():
        names = users.get(work) or ["shared"]
        for name in names:
            costs[name] += spent / len(names)
    costs["shared"] += max(0.0, total - sum(seconds.values()))
    return dict(costs)

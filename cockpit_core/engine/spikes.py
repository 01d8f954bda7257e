"""Noticing a loss that breaks, on steps that nobody scheduled."""

from __future__ import annotations

import math
import statistics
from collections import deque


class Spikes:
    """A loss is out of line if it is not finite or above median + 10 MAD of the last 200.

    A test costs a couple of microseconds: the bound is renewed every 20 losses, and only then sorted.
    """

    def __init__(self, window: int = 200, deviations: float = 10.0, warm_up: int = 20):
        self.losses: deque[float] = deque(maxlen=window)
        self.deviations, self.warm_up = deviations, warm_up
        self.bound = math.inf
        self.fresh = 0

    def sees(self, loss: float) -> str | None:
        """Why this loss is out of line, or None."""
        if not math.isfinite(loss):
            return f"the loss is {loss}"
        bound = self.bound
        self.losses.append(loss)
        self.fresh += 1
        if len(self.losses) >= self.warm_up and (self.fresh >= 20 or math.isinf(self.bound)):
            self.fresh = 0
            self.bound = self._renew()
        return f"the loss {loss:.4g} is above {bound:.4g} (median + 10 MAD)" if loss > bound else None

    def _renew(self) -> float:
        middle = statistics.median(self.losses)
        spread = statistics.median(abs(loss - middle) for loss in self.losses)
        return middle + self.deviations * max(spread, 1e-3 * abs(middle), 1e-12)

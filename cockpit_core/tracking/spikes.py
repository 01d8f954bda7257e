"""Noticing a loss that breaks, on steps that nobody scheduled."""

from __future__ import annotations

import math
import sys
from collections import deque

LARGEST = sys.float_info.max
RENEW = 20


CALM = 10
IN_LINE, HIGH, BROKEN = 0, 1, 2


class Spikes:
    """A loss is out of line if it is not finite or above median + 10 MAD of the last 200.

    A test costs less than a microsecond: one comparison, with a bound that is renewed every 20 losses. A loss that stays
    out of line is one event: it is reported when it leaves the line and when it breaks altogether, and again only
    after 10 losses in line.
    """

    def __init__(self, window: int = 200, deviations: float = 10.0, warm_up: int = 20):
        self.losses: deque[float] = deque(maxlen=window)
        self.deviations, self.warm_up = deviations, warm_up
        self.bound = LARGEST
        self.left = warm_up  # losses until the bound is renewed
        self.level, self.calm = IN_LINE, 0  # the worst of the event that goes on, and losses in line since

    def sees(self, loss: float) -> str | None:
        """Why this loss is out of line; None if it is not, or if that was said already."""
        bound = self.bound
        if not math.isfinite(loss):
            return f"the loss is {loss}" if self._is_news(BROKEN) else None
        self.losses.append(loss)
        self.left -= 1
        if self.left <= 0:
            self.left = RENEW
            self.bound = self._renew()
        if loss > bound:
            return f"the loss {loss:.4g} is above {bound:.4g} (median + 10 MAD)" if self._is_news(HIGH) else None
        if self.level:
            self.calm += 1
            if self.calm >= CALM:
                self.level = IN_LINE
        return None

    def _is_news(self, level: int) -> bool:
        worse, self.level, self.calm = level > self.level, max(level, self.level), 0
        return worse

    def _renew(self) -> float:
        ordered = sorted(self.losses)
        middle = median(ordered)
        # For ordered losses the distances fall and then rise, so sorting them is one pass.
        spread = median(sorted([abs(loss - middle) for loss in ordered]))
        return middle + self.deviations * max(spread, 1e-3 * abs(middle), 1e-12)


def median(ordered: list[float]) -> float:
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2

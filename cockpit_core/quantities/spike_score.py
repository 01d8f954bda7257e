from __future__ import annotations

import math
from collections import deque
from statistics import median

from cockpit_core.quantities.base import NoValue, Quantity, Statistics, Value, check_window

ENOUGH = 10
ROBUST = 1.4826
"""The median of distances times this is the standard deviation, where losses are normal."""


class SpikeScore(Quantity):
    """Is the loss out of line? ``(L_t - median) / (1.4826 MAD)`` over the last ``window`` tracked losses before it.

    In robust standard deviations: single spikes change neither the median nor the median distance. Around 0 in quiet
    times; above 7 is a spike. "SpikeScore/share" is the share of tracked losses since the run began that were above 7, the
    loss-spike score of a run (stability studies such as arXiv 2309.14322 count such steps). No value for the first ten
    tracked losses, and where they are all the same. A loss that falls fast has scores below 0; a schedule with restarts
    looks like a spike.
    """

    description = "Deviation of the loss from its recent median, in robust standard deviations; above 7 is a spike."
    question = "is the loss out of line?"
    formula = "`(L - median) / (1.4826 MAD)` of the tracked losses before; `/share` above 7 so far"
    cost = "nothing"

    def __init__(self, *, window: int = 200, threshold: float = 7.0, schedule=None):
        super().__init__(schedule=schedule)
        self.window, self.threshold = check_window(window), float(threshold)
        self._seen: deque[tuple[int, float]] = deque(maxlen=self.window)
        self._spikes, self._scored = 0, 0

    def measure(self, statistics: Statistics) -> Value:
        while self._seen and self._seen[-1][0] >= statistics.step:  # a resumed run, or another one
            self._seen.pop()
            self._spikes, self._scored = (self._spikes, self._scored) if self._seen else (0, 0)
        known, loss = [value for _, value in self._seen], statistics.loss
        if math.isfinite(loss):
            self._seen.append((statistics.step, loss))
        if len(known) < min(ENOUGH, self.window):
            raise NoValue(f"it takes {min(ENOUGH, self.window)} tracked losses to compare with; there are {len(known)}")
        middle = median(known)
        spread = ROBUST * median(abs(value - middle) for value in known)
        if spread == 0:
            raise NoValue("the losses before this one are all the same")
        score = (loss - middle) / spread
        self._scored += 1
        self._spikes += not score <= self.threshold  # a loss that is not a number is a spike too
        return Value(score, parts={"share": Value(self._spikes / self._scored)})

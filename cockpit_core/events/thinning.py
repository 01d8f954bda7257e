"""Which histograms of a long run are kept: all at first, then fewer and fewer."""

from __future__ import annotations

import math

HEAVY_ALL = 256
HEAVY_MAX = 512
HEAVY_GROWTH = 1.04
HEAVY_EXTRA = 64  # histograms of triggered steps come on top of those of the schedule


class Thinning:
    """Which of a stream of unknown length to keep: all of the first 256, then ever fewer, at most 512.

    The k-th one kept (from 0) is number ``256 * 1.04 ** (k - 255)`` of the stream, so the distance between two is 4 %
    of what has gone by: enough for six million, and the same for every run.
    """

    def __init__(self, kept: int = 0) -> None:
        self.kept = min(kept, HEAVY_MAX)
        self.offered = self._position(self.kept)
        self.extra = 0

    @staticmethod
    def _position(k: int) -> int:
        return k if k < HEAVY_ALL else math.ceil(HEAVY_ALL * HEAVY_GROWTH ** (k - HEAVY_ALL + 1))

    def offer(self, keep: bool = False) -> bool:
        index = self.offered
        self.offered += 1
        if self.kept < HEAVY_MAX and index >= self._position(self.kept):
            self.kept += 1
            return True
        if keep and self.extra < HEAVY_EXTRA:
            self.extra += 1
            return True
        return False

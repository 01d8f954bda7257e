"""The learning-rate schedule of the paper's showcases."""

from __future__ import annotations

import math
from collections.abc import Iterator


def cosine_restarts(first: int) -> Iterator[float]:
    """One factor per epoch: half a cosine over ``first`` epochs, then again over twice as many, and so on."""
    length = first
    while True:
        for epoch in range(1, length + 1):
            yield 0.5 * (1 + math.cos(math.pi * epoch / length))
        length *= 2

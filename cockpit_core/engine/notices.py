"""The lowest layer: what the numbers themselves show, without judging it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from cockpit_core.records import Histogram, Notice, Record

OUTSIDE = 0.01


def find_notices(record: Record, histograms: list[Histogram], gradient_norms: Mapping[str, float]) -> Iterator[Notice]:
    """Values that are not finite, layers without any gradient, histograms that miss the data.

    What is wrong with the training is a finding, see ``cockpit_core.diagnoses``; notices say what the numbers show.
    """
    for name, value in record.scalars.items():
        if not math.isfinite(value):
            yield Notice(record.step, "not_finite", f"{name} is {value}", name)
    dead = [name for name, norm in gradient_norms.items() if norm == 0]
    if dead:
        text = f"{len(dead)} of {len(gradient_norms)} layers have a gradient of exactly zero and learn nothing"
        yield Notice(record.step, "zero_gradient", text, "GradNorm", dead[0] if len(dead) == 1 else "")
    for histogram in histograms:
        yield from check_histogram(histogram)


class Repeats:
    """What is the case at step after step is said at the 1st, 2nd, 4th, 8th, ... of them: a list of all would drown the
    rest."""

    KINDS = ("outside_range", "zero_gradient")

    def __init__(self) -> None:
        self.seen: Counter[tuple[str, str, str]] = Counter()

    def thin(self, notices: Iterable[Notice]) -> Iterator[Notice]:
        for notice in notices:
            if notice.kind in self.KINDS:
                key = notice.kind, notice.quantity, notice.layer
                self.seen[key] += 1
                if self.seen[key].bit_count() != 1:
                    continue
            yield notice


def check_histogram(histogram: Histogram) -> Iterator[Notice]:
    total = int(histogram.counts.sum())
    outside = histogram.below + histogram.above
    if total and outside > OUTSIDE * total:
        low, high = histogram.edges[0], histogram.edges[-1]
        text = f"{outside / total:.1%} of the gradient elements lie outside {low:g} to {high:g}; widen range="
        yield Notice(histogram.step, "outside_range", text, histogram.quantity, histogram.layer)
    broken = histogram.nan + histogram.pos_inf + histogram.neg_inf
    if broken:
        text = f"{broken} gradient elements are NaN or infinite"
        yield Notice(histogram.step, "not_finite", text, histogram.quantity, histogram.layer)

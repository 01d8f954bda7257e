"""The lowest layer: what the numbers themselves show, without judging it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from cockpit_core.foundation.records import Histogram, Notice, Record
from cockpit_core.recording.values import Heavy

OUTSIDE = 0.01
MOST_NAMES = 4


def find_notices(record: Record, histograms: list[Histogram], gradient_norms: Mapping[str, float]) -> Iterator[Notice]:
    """Values that are not finite, layers without any gradient, histograms that miss the data.

    What is wrong with the training is a finding, see ``cockpit_core.diagnoses``; notices say what the numbers show.
    """
    yield from find_broken(record)
    dead = [name for name, norm in gradient_norms.items() if norm == 0]
    if dead:
        named = ", ".join(dead[:MOST_NAMES]) + (f" and {len(dead) - MOST_NAMES} more" if len(dead) > MOST_NAMES else "")
        text = (
            f"{len(dead)} of {len(gradient_norms)} tensors have a gradient of exactly zero and learn nothing: {named}"
        )
        yield Notice(record.step, "zero_gradient", text, "GradNorm", dead[0] if len(dead) == 1 else "")
    for histogram in histograms:
        yield from check_histogram(histogram)


def find_broken(record: Record) -> Iterator[Notice]:
    """One notice for all that is not finite: with the loss everything else is lost too."""
    if all(map(math.isfinite, record.scalars.values())):
        return
    broken = {name: value for name, value in record.scalars.items() if not math.isfinite(value)}
    first = "Loss" if "Loss" in broken else next(iter(broken), "")
    if first:
        others = [name for name in broken if name != first]
        more = f", and so {'is' if len(others) == 1 else 'are'} {', '.join(others)}" if others else ""
        yield Notice(record.step, "not_finite", f"{first} is {broken[first]}{more}", first)


class Repeats:
    """What holds at step after step is told at the 1st, 2nd, 4th, 8th, ... of them: a list of all would drown the
    rest. A loss that is not finite is told once, when it breaks, and nothing else that is not finite until the loss
    has recovered."""

    KINDS = ("outside_range", "zero_gradient", "not_finite")

    def __init__(self) -> None:
        self.seen: Counter[tuple[str, str, str]] = Counter()
        self.lost = False  # the loss of the record before was not finite

    def thin(self, notices: Iterable[Notice], loss: float = 0.0) -> Iterator[Notice]:
        """``loss``: the loss of the record that they belong to."""
        known, self.lost = self.lost, not math.isfinite(loss)
        for notice in notices:
            if notice.kind == "not_finite" and self.lost:
                if not known:
                    yield notice
                known = True
                continue
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


def find_all(record: Record, heavy: Iterable[Heavy], gradient_norms: Mapping[str, float]) -> Iterator[Notice]:
    """The notices of a record and of its histograms. What has no edges is not a histogram, but is stored like one."""
    pairs = list(heavy)
    networks = [network for network, _ in pairs if network.edges.size]
    layers = [h for _, by_layer in pairs for h in by_layer if h is not None and h.edges.size]
    yield from find_notices(record, networks, gradient_norms)
    yield from worst_layers(layers)


def worst_layers(histograms: list[Histogram], most: int = 3) -> list[Notice]:
    """Only the worst of the layers that are out of range: a notice per layer and step would drown the page."""
    notices = [(h.below + h.above + h.nan, notice) for h in histograms for notice in check_histogram(h)]
    return [notice for _, notice in sorted(notices, key=lambda pair: -pair[0])[:most]]

"""What a user should look at, found in the numbers themselves."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import torch

from cockpit_core.records import Histogram, Notice, Record

OUTSIDE = 0.01
MOST_NAMES = 4


def find_notices(
    record: Record, histograms: list[Histogram], limit: float | None, gradient_norms: Mapping[str, float]
) -> Iterator[Notice]:
    """Values that are not finite, layers without any gradient, histograms that miss the data, curvature beyond what the
    step size allows.

    ``limit`` is the largest curvature at which gradient descent with this learning rate is stable, None if unknown.
    """
    for name, value in record.scalars.items():
        if not math.isfinite(value):
            yield Notice(record.step, "not_finite", f"{name} is {value}", name)
    dead = [name for name, norm in gradient_norms.items() if norm == 0]
    if dead:
        named = ", ".join(dead[:MOST_NAMES]) + (f" and {len(dead) - MOST_NAMES} more" if len(dead) > MOST_NAMES else "")
        text = (
            f"{len(dead)} of {len(gradient_norms)} tensors have a gradient of exactly zero and learn nothing: {named}"
        )
        yield Notice(record.step, "zero_gradient", text, "GradNorm", dead[0] if len(dead) == 1 else "")
    for histogram in histograms:
        yield from check_histogram(histogram)
    sharpness = record.scalars.get("HessMaxEV")
    if limit is not None and sharpness is not None and sharpness > limit:
        text = f"largest eigenvalue {sharpness:.4g} is above {limit:.4g}, where steps of this learning rate grow"
        yield Notice(record.step, "edge_of_stability", text, "HessMaxEV")


class Repeats:
    """What is the case at step after step is said at the 1st, 2nd, 4th, 8th, ... of them: a list of all would drown the
    rest."""

    KINDS = ("outside_range", "zero_gradient", "edge_of_stability", "not_finite")

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


def stability_limit(optimizer: torch.optim.Optimizer) -> float | None:
    """``2 / lr`` for SGD, ``2 (1 + momentum) / lr`` with heavy-ball momentum; None for every other optimizer."""
    if type(optimizer) is not torch.optim.SGD or len({float(group["lr"]) for group in optimizer.param_groups}) != 1:
        return None
    group = optimizer.param_groups[0]
    if group.get("nesterov") or group.get("dampening") or not float(group["lr"]) > 0:
        return None
    return 2 * (1 + float(group.get("momentum", 0.0))) / float(group["lr"])

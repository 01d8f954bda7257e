"""Scales and ranges of histograms: logarithmic bins need no range; even ones have a fixed one, or one that follows the values
by powers of two so that neighbouring records compare."""

from __future__ import annotations

from typing import Any

from cockpit_core.foundation.records import Histogram

DEFAULT_SCALE = "log"
SCALES = ("log", "linear")


def choose_scale(scale: str | None, **linear_only: Any) -> str:
    """The scale that was asked for; even bins if the other arguments only fit those, else the default."""
    given = [name for name, value in linear_only.items() if value is not None]
    if scale is None:
        return "linear" if given else DEFAULT_SCALE
    if scale not in SCALES:
        raise ValueError(f"scale must be 'log' or 'linear', got {scale!r}")
    if scale == "log" and given:
        raise ValueError(
            f"{', '.join(given)} cannot be set for logarithmic bins, which have no ends: leave it out (per_octave= says how "
            "fine they are), or take scale='linear'"
        )
    return scale


def check_per_octave(per_octave: int | None, scale: str, default: int) -> int:
    if per_octave is not None and scale == "linear":
        raise ValueError("per_octave= is for logarithmic bins: take scale='log', or bins= and range= of even ones")
    return default if per_octave is None else per_octave


def check_range(bounds: Any) -> Any:
    if bounds == "adaptive":
        return bounds
    if isinstance(bounds, (tuple, list)) and len(bounds) == 2 and float(bounds[0]) < float(bounds[1]):
        return float(bounds[0]), float(bounds[1])
    raise ValueError(f"range must be (low, high) with low < high, or 'adaptive', got {bounds!r}")


class AdaptiveRange:
    """``(-h, h)``: doubled when more than 1 % of the values were outside, halved when all lay in the inner quarter."""

    def __init__(self, half: float):
        self.half = half

    @property
    def bounds(self) -> tuple[float, float]:
        return -self.half, self.half

    def follow(self, histogram: Histogram) -> None:
        """Over gradients: the bins of a second axis are added up."""
        counts = histogram.counts if histogram.counts.ndim == 1 else histogram.counts.sum(1)
        total, outside = int(counts.sum()), histogram.below + histogram.above
        if total == 0:
            return
        if outside > 0.01 * total and self.half < 2.0**60:
            self.half *= 2
            return
        quarter = len(counts) // 4
        middle = counts[quarter : len(counts) - quarter] if quarter else counts
        inner = len(middle) // 4
        if (
            inner
            and counts[: quarter + inner].sum() + counts[len(counts) - quarter - inner :].sum() == 0
            and self.half > 2.0**-60
        ):
            self.half /= 2

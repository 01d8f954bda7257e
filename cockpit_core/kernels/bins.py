"""Which bin does a gradient value fall into? The one rounding rule that every path follows, bit for bit.

1. Half types (bfloat16, float16) are converted to float32, which is exact; float64 stays float64. Call the result's
   type C. A product ``b * a`` is formed in the gradients' own type: for half types the float32 product, rounded once
   to the half type.
2. ``t = (x - anchor) * scale``: one subtraction, one multiplication, each rounded to C, in this order, which no
   compiler may contract into a fused multiply-add. ``scale`` is ``count / (high - low)`` rounded to C. ``anchor`` is
   0 where 0 is an edge of the bins (it is for the defaults), so that the sign of the smallest gradient decides its
   side; otherwise it is ``low`` rounded to C.
3. The bin is ``floor(t) + offset`` (``offset``: how many bins lie left of the anchor), clamped to ``[0, count - 1]``.
4. ``x < low`` is also counted as below and ``x > high`` as above (bounds rounded to C); ``x == high`` is in the last
   bin and not above.
5. NaN, +inf and -inf (also from a product that overflows) are counted apart and are in no bin.

The rule is monotone in x, which the fast paths rely on. A value within a few roundings of an edge (relative 2**-22
for float32) may fall to the neighbour of the bin that real numbers would choose, the same one on every path.

A value's *category* says all of this at once: 0 below, 1..count its bin, count + 1 above, then NaN, +inf, -inf. A
parameter's is 0 below, 1..count, count + 1 above, count + 2 not finite. One table of categories per histogram is all
that a kernel fills.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from cockpit_core.kernels.log_bins import LogBins

MAX_BINS = 4096
GRADIENT_EXTRA = 5  # below, above, NaN, +inf, -inf
PARAMETER_EXTRA = 3  # below, above, not finite


@dataclass(frozen=True)
class Binning:
    """The rule's constants in the type C in which bins are computed (numpy scalars of that type, and ints)."""

    anchor: np.floating
    scale: np.floating
    low: np.floating
    high: np.floating
    offset: int
    count: int


@dataclass(frozen=True)
class Bins:
    """``count`` bins of equal width on ``[low, high]``."""

    low: float
    high: float
    count: int

    def __post_init__(self) -> None:
        if isinstance(self.count, bool) or not isinstance(self.count, (int, np.integer)):
            raise TypeError(f"the number of bins must be an integer, got {self.count!r}")
        if not 1 <= self.count <= MAX_BINS:
            raise ValueError(f"the number of bins must be from 1 to {MAX_BINS}, got {self.count}")
        object.__setattr__(self, "low", float(self.low))
        object.__setattr__(self, "high", float(self.high))
        object.__setattr__(self, "count", int(self.count))
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError(f"bins need finite bounds with low < high, got low={self.low}, high={self.high}")
        self._check_representable()

    def _check_representable(self) -> None:
        # Gradients are mostly float32: bounds that collapse, or a scale that overflows or turns subnormal there,
        # would give NaN bins.
        limits = np.finfo(np.float32)
        width = (self.high - self.low) / self.count
        largest = max(abs(self.low), abs(self.high))
        if largest > 1e30 or not float(limits.tiny) * 4 < width < 1e30 or width < largest * 2.0**-22:
            raise ValueError(
                f"bins of width {width:g} on [{self.low:g}, {self.high:g}] cannot be told apart in float32"
            )

    @property
    def edges(self) -> np.ndarray:
        """The ``count + 1`` edges in float64."""
        return _make_edges(self).copy()

    @property
    def zero_edge(self) -> int | None:
        """Which edge is zero, if one is (up to the rounding of the bounds as they were typed)."""
        position = -self.low / (self.high - self.low) * self.count
        nearest = round(position)
        return nearest if 0 <= nearest <= self.count and abs(position - nearest) <= 1e-12 * self.count else None

    @property
    def width(self) -> float:
        return (self.high - self.low) / self.count

    def binning(self, double: bool) -> Binning:
        """The constants of the rule, in float64 if ``double``, else in float32."""
        kind = np.float64 if double else np.float32
        zero = self.zero_edge
        anchor, offset = (0.0, zero) if zero is not None else (self.low, 0)
        scale = kind(self.count / (self.high - self.low))
        return Binning(kind(anchor), scale, kind(self.low), kind(self.high), offset, self.count)

    def category(self, value: float, double: bool = True) -> int:
        """The category of one value, written to be read: the reference for all kernels."""
        rule = self.binning(double)
        x = type(rule.scale)(value)
        if not math.isfinite(x):
            return self.count + (2 if math.isnan(x) else 3 if x > 0 else 4)
        if x < rule.low:
            return 0
        if x > rule.high:
            return self.count + 1
        index = math.floor((x - rule.anchor) * rule.scale) + rule.offset
        return 1 + min(max(index, 0), self.count - 1)


@lru_cache(maxsize=64)
def _make_edges(bins: Bins) -> np.ndarray:
    edges = np.linspace(bins.low, bins.high, bins.count + 1)
    if bins.zero_edge is not None:
        edges[bins.zero_edge] = 0.0
    return edges


AnyBins = Bins | LogBins


@dataclass(frozen=True)
class Spec:
    """Which histograms to count: ``gradient`` for the 1D one, ``joint`` = (gradient bins, parameter bins) for the 2D
    one.
    """

    gradient: AnyBins | None = None
    joint: tuple[AnyBins, AnyBins] | None = None

    def __post_init__(self) -> None:
        if self.joint is not None and len(self.joint) != 2:
            raise ValueError("joint must be a pair: (gradient bins, parameter bins)")

    @property
    def is_marginal(self) -> bool:
        """Is the 1D histogram the marginal of the 2D one, so that it need not be counted?"""
        return self.gradient is not None and self.joint is not None and self.joint[0] == self.gradient

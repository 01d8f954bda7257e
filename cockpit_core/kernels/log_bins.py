"""Bins by sign and magnitude, a fixed number per octave, and one for zero: gradients of a network span many powers of ten.

The rule, the same on every path because it is whole-number arithmetic on the bits of a number:

1. Half types are converted to float32, which is exact; float64 stays float64.
2. The magnitude's exponent ``e`` and mantissa ``m`` (``|x| = m 2**e``, ``1 <= m < 2``) give the step
   ``(e - lowest) * per_octave + #{j : m >= 2**(j / per_octave)}``, j = 1 .. per_octave - 1, where each limit is the
   least number of the type that is not below it.
3. ``|x| < 2**lowest`` is in the bin of zero, zeros and subnormal numbers included. Steps beyond the last are the last: for
   the widest bins (``lowest`` -126, ``highest`` 128) float32 and the half types have none, and what float64 has beyond
   1e-38 or 3e38 is in the bin of zero or in the outermost.
4. NaN and infinities are counted apart.

So nothing is ever outside. A bin of positive numbers holds its lower edge, a bin of negative ones its upper edge.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

MOST_PER_OCTAVE = 8
SMALLEST, LARGEST = -126, 128  # exponents of float32's smallest normal number and of what is just beyond its largest
ALIGNED = 8
"""Octaves: the ends of a record are multiples of these, so that neighbouring records mostly have the same bins."""
MANTISSA = {False: 23, True: 52}


@dataclass(frozen=True)
class LogBins:
    """``per_octave`` bins between two powers of two, from ``2**lowest`` to ``2**highest``, for either sign."""

    per_octave: int = 2
    lowest: int = SMALLEST
    highest: int = LARGEST

    def __post_init__(self) -> None:
        for name in ("per_octave", "lowest", "highest"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
                raise TypeError(f"{name} of logarithmic bins must be an integer, got {value!r}")
            object.__setattr__(self, name, int(value))
        if not 1 <= self.per_octave <= MOST_PER_OCTAVE:
            raise ValueError(f"per_octave must be from 1 to {MOST_PER_OCTAVE}, got {self.per_octave}")
        if not SMALLEST <= self.lowest < self.highest <= LARGEST:
            raise ValueError(
                f"logarithmic bins go from 2**lowest to 2**highest with {SMALLEST} <= lowest < highest <= {LARGEST}, "
                f"got lowest={self.lowest}, highest={self.highest}"
            )

    @property
    def steps(self) -> int:
        """Bins of one sign."""
        return (self.highest - self.lowest) * self.per_octave

    @property
    def count(self) -> int:
        return 2 * self.steps + 1

    def thresholds(self, double: bool) -> tuple[int, ...]:
        """The mantissas (as whole numbers, without the leading one) at which the bins of an octave begin, but the first."""
        return tuple(_least_mantissa(j, self.per_octave, MANTISSA[double]) for j in range(1, self.per_octave))

    @property
    def magnitudes(self) -> np.ndarray:
        """The ``steps + 1`` edges of positive numbers, in float64; not to be written to."""
        return _find_magnitudes(self)

    @property
    def edges(self) -> np.ndarray:
        """The ``count + 1`` edges in float64, strictly increasing; the two in the middle surround zero."""
        return np.concatenate([-self.magnitudes[::-1], self.magnitudes])

    def category(self, value: float, double: bool = True) -> int:
        """The category of one value, written to be read: the reference for all kernels."""
        x = float(np.float64(value) if double else np.float32(value))
        if not math.isfinite(x):
            return self.count + (2 if math.isnan(x) else 3 if x > 0 else 4)
        zero = self.steps + 1
        if abs(x) < math.ldexp(1.0, self.lowest):
            return zero
        fraction, exponent = math.frexp(abs(x))  # in [1/2, 1)
        mantissa = int(math.ldexp(2 * fraction - 1, MANTISSA[double]))
        within = sum(mantissa >= limit for limit in self.thresholds(double))
        step = min((exponent - 1 - self.lowest) * self.per_octave + within, self.steps - 1)
        return zero + (1 + step if x > 0 else -1 - step)

    def find_occupied(self, counts: np.ndarray, axis: int = 0) -> tuple[int, int]:
        """Which steps of magnitude a record holds: those with counts in either sign, from and to a multiple of ``ALIGNED``
        octaves; around 1 where everything is zero."""
        ahead = put_first(counts, axis)
        any_at = ahead != 0 if ahead.ndim == 1 else np.asarray(ahead.reshape(len(ahead), -1).any(axis=1))
        occupied = np.flatnonzero(any_at[self.steps + 1 :] | any_at[: self.steps][::-1])
        one = max(0, min(self.steps - 1, -self.lowest * self.per_octave))
        first, last = (int(occupied[0]), int(occupied[-1])) if len(occupied) else (one, one)
        width, shift = ALIGNED * self.per_octave, self.lowest % ALIGNED * self.per_octave
        low, high = (first + shift) // width * width - shift, -(-(last + 1 + shift) // width) * width - shift
        return max(low, 0), min(high, self.steps)

    def trim(self, counts: np.ndarray, occupied: tuple[int, int], axis: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Those bins along an axis, and their edges. Bins between the smallest of them and zero are part of zero's."""
        (low, high), zero, magnitudes = occupied, self.steps, self.magnitudes
        ahead = put_first(counts, axis)
        around = ahead[zero - low : zero + low + 1].sum(axis=0, keepdims=True)
        kept = np.concatenate([ahead[zero - high : zero - low], around, ahead[zero + low + 1 : zero + high + 1]])
        edges = np.concatenate([-magnitudes[low : high + 1][::-1], magnitudes[low : high + 1]])
        return (kept if kept.ndim == 1 else np.ascontiguousarray(np.moveaxis(kept, 0, axis))), edges


def put_first(counts: np.ndarray, axis: int) -> np.ndarray:
    return counts if counts.ndim == 1 else np.moveaxis(counts, axis, 0)


@lru_cache(maxsize=64)
def _find_magnitudes(bins: LogBins) -> np.ndarray:
    within = np.array([1.0, *(1 + m / 2.0 ** MANTISSA[True] for m in bins.thresholds(True))])
    octaves = np.ldexp(1.0, np.arange(bins.lowest, bins.highest))
    magnitudes = np.append((octaves[:, None] * within).reshape(-1), math.ldexp(1.0, bins.highest))
    magnitudes.flags.writeable = False
    return magnitudes


def _least_mantissa(j: int, per_octave: int, bits: int) -> int:
    """The least whole m with ``1 + m / 2**bits >= 2**(j / per_octave)``, exactly: by whole numbers."""
    limit = 1 << (bits * per_octave + j)
    low, high = 1 << bits, 2 << bits  # low**per_octave < limit <= high**per_octave
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if middle**per_octave >= limit else (middle, high)
    return high - (1 << bits)

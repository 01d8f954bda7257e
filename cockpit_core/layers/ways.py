"""Which of several exact ways to the same numbers is taken, by what was measured (one thread, AVX-512).

| sums over positions of ``b a^T`` | where |
|---|---|
| from the nonzero output gradients alone (``native.convolving``) | a convolution, and few are not zero |
| from all, in registers (``native.dense``) | else, with native kernels: 1.2 to 2 times as fast as a stored block or as Gram |
| norms by products of positions, with no projection | nothing else is asked, with native kernels and S (in + out) <= in * out |
| norms by Gram matrices, projections by products | few positions; or no kernels and 2 S^2 < in * out |
| blocks that are formed and read | else: no kernels, squares, the 2D histogram, gradients that are kept |
"""

from __future__ import annotations

from torch import Tensor

SPARSE = 0.4
"""Share of output gradients that are not zero up to which walking over those alone is faster than over all."""
FEW_POSITIONS = 4
"""Below that, Gram matrices and a projection are faster than sums in registers (S = 2, 300 to 200: 0.10 against 0.23 ms)."""
LARGE = 2**16
"""Elements of a matrix below which nothing is to be had."""
LARGEST = 2**31 - 1
"""Kernels count places of one sample in 32 bits."""


def takes_gram(positions: int, inner: int, out: int, *, has_kernel: bool) -> bool:
    """Norms by Gram matrices of the positions? A projection is asked for too."""
    return 2 * positions**2 < inner * out and (positions < FEW_POSITIONS or not has_kernel)


def takes_products(positions: int, inner: int, out: int) -> bool:
    """Norms alone by native products of positions with each other? (16 samples, 384 to 128: 16 positions 0.10 against
    0.39 ms, 64 positions 0.57 against 1.15; 128 positions of 512 to 128: 2.3 against 3.2.)"""
    return positions * (inner + out) <= inner * out


def takes_pairs(samples: int, inner: int, out: int) -> bool:
    """Products of all samples with each other, rather than of each with a matrix? (128 samples, 784 to 1000: 0.7 against
    2.4 ms; 512 to 256: 0.31 against 0.37.)"""
    return inner * out >= LARGE and samples * (inner + out) <= 0.7 * inner * out


def fits(a: Tensor, b: Tensor) -> bool:
    """Is there something to do, and is its size one that a kernel can count?"""
    inner, outer = a.numel(), b.numel()
    return inner > 0 and outer > 0 and inner // a.shape[0] <= LARGEST and outer // b.shape[0] <= LARGEST

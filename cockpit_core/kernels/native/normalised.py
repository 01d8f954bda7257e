"""What a normalisation over channels contributes to its weight and bias, sample by sample, in one pass over its input and
the gradient of its output."""

from __future__ import annotations

from array import array

import torch
from torch import Tensor

from cockpit_core.kernels.native import find_library
from cockpit_core.kernels.native.convolving import PADDING, take_room
from cockpit_core.kernels.native.reducing import can_reduce
from cockpit_core.kernels.native.walking import list_items, walk
from cockpit_core.kernels.threads import cut, share

ALONE = 1 << 17  # elements: less work than this is not worth waking a thread
LEAST = 1 << 13  # elements: below that the number of calls counts, and torch has fewer


def can_normalise(x: Tensor, b: Tensor) -> bool:
    alike = x.shape == b.shape and x.dtype == b.dtype and x.dim() >= 2 and b.device == x.device
    return alike and x.numel() >= LEAST and can_reduce(x, 0)


def find_moments(x: Tensor, groups: int, *, joined: bool) -> tuple[Tensor, Tensor]:
    """Mean and variance (both float64) of ``x`` [N, C, *space] for each sample and group of channels [N, groups], or for
    each group over all samples [1, groups]. The variance is divided by the number of elements."""
    library = find_library()
    assert library is not None
    x, samples = x.contiguous(), len(x)
    size = x[0].numel() // groups
    mean = torch.empty(1 if joined else samples, groups, dtype=torch.float64)
    variance = torch.empty_like(mean)
    kernel, each = library.function("find_moments", x.dtype), groups * size * x.element_size()

    def run(low: int, high: int) -> None:
        shift = 0 if joined else 8 * low * groups
        given = x.data_ptr() + low * each, high - low, groups, size, int(joined)
        kernel(*given, mean.data_ptr() + shift, variance.data_ptr() + shift)

    share(run, [(0, samples)] if joined else cut(samples, x.numel(), ALONE))
    return mean, variance


def sum_normalised(x: Tensor, b: Tensor, mean: Tensor, variance: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Sums over positions of ``b x_hat`` and of ``b``, [N, C] each: ``x_hat = (x - mean) / sqrt(variance + eps)``, with
    mean and variance [N or 1, groups]."""
    library = find_library()
    assert library is not None
    x, b = x.contiguous(), b.contiguous()
    samples, channels = x.shape[:2]
    size = x[0, 0].numel()
    mean, inverse = mean.double().contiguous(), (variance.double() + eps).rsqrt().contiguous()
    products, sums = x.new_empty(samples, channels), x.new_empty(samples, channels)
    joined, groups = len(mean) == 1 < samples, mean.shape[1]
    kernel = library.function("sum_normalised", x.dtype)

    def run(low: int, high: int) -> None:
        own, each = low * channels, x.element_size()
        shift = 0 if joined else 8 * low * groups
        kernel(
            x.data_ptr() + own * size * each, b.data_ptr() + own * size * each, high - low, channels, size, groups,
            int(joined), mean.data_ptr() + shift, inverse.data_ptr() + shift, products.data_ptr() + own * each,
            sums.data_ptr() + own * each,
        )  # fmt: skip

    share(run, cut(samples, x.numel(), ALONE))
    return products, sums


def sum_by_groups(x: Tensor, b: Tensor, groups: int, eps: float) -> tuple[Tensor, Tensor]:
    """The same with the moments of each sample and group of channels: both in one go, while a sample is in the cache."""
    x, b = x.contiguous(), b.contiguous()
    samples, channels = x.shape[:2]
    if b.shape != x.shape or b.dtype != x.dtype or channels % groups:  # a kernel would read what is not there
        raise ValueError(
            f"{tuple(x.shape)} and {tuple(b.shape)} do not fit each other, or {groups} groups do not fit them"
        )
    products, sums = x.new_empty(samples, channels), x.new_empty(samples, channels)
    job = array("q", (x.data_ptr(), b.data_ptr(), products.data_ptr(), sums.data_ptr(), channels))
    job.extend((x.numel() // max(samples * channels, 1), groups))
    threads = torch.get_num_threads() if x.numel() >= 2 * ALONE else 1
    items = list_items([samples], [max(1, samples // (2 * threads))])
    walk("walk_normalised", x.dtype, items, job, array("d", [eps]), threads)
    return products, sums


def can_sum_positions(x: Tensor, b: Tensor) -> bool:
    """[N, S, F] both, the numbers of a position side by side."""
    alike = x.dim() == 3 and x.shape == b.shape and x.dtype == b.dtype and b.device == x.device and x.numel() > 0
    return alike and x.stride(2) == b.stride(2) == 1 and can_reduce(x, 0)


def sum_positions(x: Tensor, b: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Sums over positions of ``b x_hat`` and of ``b``, [N, F] each: ``x_hat`` is normalised at each position."""
    if not can_sum_positions(x, b):  # a kernel would read what is not there
        raise ValueError(f"{tuple(x.shape)} and {tuple(b.shape)} do not fit each other")
    samples, positions, size = x.shape
    both = x.new_empty(2, samples, size)
    products, sums = both.unbind()
    job = array("q", (x.data_ptr(), b.data_ptr(), *x.stride()[:2], *b.stride()[:2]))
    job.extend((products.data_ptr(), sums.data_ptr(), positions, size))
    threads = torch.get_num_threads() if x.numel() >= 2 * ALONE else 1
    each = 2 * positions + PADDING
    items, room = list_items([samples], [max(1, samples // (2 * threads))]), take_room(each * threads, x.dtype)
    walk("walk_positions", x.dtype, items, job, array("d", [eps]), threads, room=room.data_ptr(), room_size=each)
    return products, sums

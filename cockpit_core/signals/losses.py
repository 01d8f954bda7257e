"""The spread of individual losses: what a batch's loss must fluctuate by, and whether a few samples dominate it."""

from __future__ import annotations

from torch import Tensor


def measure_spread(losses: Tensor) -> dict[str, float]:
    """Standard deviation, largest and median of ``l_n`` [B]."""
    values = losses.detach().double().reshape(-1)
    if values.numel() < 2:
        return {}
    numbers = (values.std(), values.max(), values.median())
    names = ("loss_std", "loss_max", "loss_median")
    return {name: float(number) for name, number in zip(names, numbers, strict=True)}

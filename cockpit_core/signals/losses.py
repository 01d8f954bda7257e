"""The spread of individual losses: what a batch's loss must fluctuate by, and whether a few samples dominate it."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from cockpit_core.signals.reading import Steps, lower_median, signal


@signal
def measure_spread(losses: Tensor) -> Steps[dict[str, float]]:
    """Standard deviation, largest and median of ``l_n`` [B]."""
    if losses.numel() < 2:
        return {}
    (values,) = yield [losses.detach().double().reshape(-1)]
    apart = values - values.mean()
    numbers = (np.sqrt(apart @ apart / (len(values) - 1)), values.max(), lower_median(values))
    return {name: float(x) for name, x in zip(("loss_std", "loss_max", "loss_median"), numbers, strict=True)}

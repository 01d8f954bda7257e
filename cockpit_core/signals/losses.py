"""The spread of individual losses: what a batch's loss must fluctuate by, and whether a few samples dominate it. And which
part of a loss of several terms is known."""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cockpit_core.signals.graph_losses import GraphLoss
from cockpit_core.signals.reading import Steps, lower_median, signal


@signal
def measure_term(loss: GraphLoss) -> Steps[dict[str, float]]:
    """Of a loss of several terms, the one that is known: ``factor * addends * mean``. What an answer that ignores the input
    would give is known of this term alone."""
    reduced: Any = copy(loss.module)
    reduced.reduction = "mean"
    with torch.no_grad():
        value = reduced(loss.output, loss.target)
    (term,) = yield [value.double()]
    return {"loss_term": float(term) * loss.factor * loss.addends}


@signal
def measure_spread(losses: Tensor) -> Steps[dict[str, float]]:
    """Standard deviation, largest and median of ``l_n`` [B]."""
    if losses.numel() < 2:
        return {}
    (values,) = yield [losses.detach().double().reshape(-1)]
    apart = values - values.mean()
    numbers = (np.sqrt(apart @ apart / (len(values) - 1)), values.max(), lower_median(values))
    return {name: float(x) for name, x in zip(("loss_std", "loss_max", "loss_median"), numbers, strict=True)}

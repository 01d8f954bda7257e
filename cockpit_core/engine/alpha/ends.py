"""The two ends of a step: individual losses and slopes at each, and the slopes of a step that was just taken."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from cockpit_core.engine.statistics import LayerStatistics, project
from cockpit_core.layers.contribution import Contribution
from cockpit_core.quantities.alpha import End


def observe_end(losses: Tensor, slopes: Tensor) -> End:
    """Means and sample variances (divisor B - 1) of individual losses and slopes, float64."""
    both = torch.stack([losses.double(), slopes.to(losses.device).double()])
    means, variances = (
        both.mean(1),
        both.var(1, correction=1) if len(losses) > 1 else torch.full_like(both[:, 0], math.nan),
    )
    return End(*torch.cat([means, variances]).tolist())


def project_on_update(
    reduced: Mapping[str, LayerStatistics],
    update: Mapping[str, Tensor],
    factors: Mapping[str, float | None],
    kept: Mapping[str, list[Contribution]],
) -> tuple[dict[str, Tensor], bool]:
    """``g_n . s`` [B] per layer for the step just taken, and whether every layer moved along its gradient.

    Where the step is ``c g`` (plain SGD, with or without clipping), the known projections on ``g`` serve, times c
    (``factors``); otherwise the kept contributions are projected.
    """
    slopes: dict[str, Tensor] = {}
    all_parallel = True
    for name, statistics in reduced.items():
        if name not in update or "gradient" not in statistics.projections:
            continue
        factor = factors.get(name)
        if factor is not None:
            slopes[name] = statistics.projections["gradient"] * factor
            continue
        all_parallel = False
        if name in kept:
            slopes[name] = torch.cat([project(part, update[name]) for part in kept[name]])
    return slopes, all_parallel

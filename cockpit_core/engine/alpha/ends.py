"""The two ends of a step: individual losses and slopes at each, and the slopes of a step that was just taken."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from cockpit_core.engine.statistics import LayerStatistics, project
from cockpit_core.kernels.native.describing import describe
from cockpit_core.layers.contribution import Contribution
from cockpit_core.quantities.alpha import End

FEW = 4
"""Layers that are scaled one by one in less time than together."""


def observe_end(losses: Tensor, slopes: Tensor, length: float = 1.0) -> End:
    """Means and sample variances (divisor B - 1) of individual losses and of ``slopes / length``, float64, on the host."""
    (loss, _, apart), (slope, _, aside) = describe([losses, slopes])
    count = losses.shape[0] - 1
    if not count:
        return End(loss, slope / length, math.nan, math.nan)
    return End(loss, slope / length, apart / count, aside / count / length / length)


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
    names = [n for n, own in reduced.items() if n in update and "gradient" in own.projections]
    parallel = [n for n in names if factors.get(n) is not None]
    slopes: dict[str, Tensor] = {}
    if len(parallel) <= FEW:
        slopes = {n: reduced[n].projections["gradient"] * factors[n] for n in parallel}  # type: ignore[operator]
    else:
        along = torch.stack([reduced[n].projections["gradient"] for n in parallel])
        scale = torch.tensor([factors[n] for n in parallel], dtype=along.dtype, device=along.device)
        slopes = dict(zip(parallel, along.mul_(scale[:, None]).unbind(), strict=True))
    for name in names:
        if name not in slopes and name in kept:
            slopes[name] = torch.cat([project(part, update[name]) for part in kept[name]])
    return slopes, len(parallel) == len(names)

"""The two ends of a step: individual losses and slopes at each, and the slopes of a step that was just taken."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from cockpit_core.engine.statistics import LayerStatistics, project
from cockpit_core.foundation import long_sums
from cockpit_core.foundation.sharded import whole
from cockpit_core.layers.contribution import Contribution
from cockpit_core.quantities.alpha import End


def observe_end(losses: Tensor, slopes: Tensor) -> End:
    """Means and sample variances (divisor B - 1) of individual losses and slopes, float64."""
    unbiased = len(losses) > 1
    return End(
        float(losses.mean()), float(slopes.mean()),
        float(losses.var(correction=1)) if unbiased else math.nan,
        float(slopes.var(correction=1)) if unbiased else math.nan,
    )  # fmt: skip


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


CHUNK = 2**17
"""So many elements are compared at a time: they stay in the cache, and no large memory is taken for the difference."""


def along_gradient(s: Tensor, g: Tensor, theta: Tensor, s_norm: float, g_norm: float) -> float | None:
    """c with ``s = c g`` up to what rounding ``theta + s`` to its dtype explains, else None."""
    s, g, theta = whole(s), whole(g), whole(theta)
    squared = g_norm * g_norm
    if squared == 0 or not math.isfinite(squared):
        return None if bool((s != 0).any()) else 0.0
    s, g, theta = s.reshape(-1), g.reshape(-1), theta.reshape(-1)
    if len(s) > 8192 and not may_be_along(s[:1024], g[:1024], theta[:1024]):
        return None
    factor = long_sums.dot(s, g) / squared
    rest = math.sqrt(sum(rest_along(s[k : k + CHUNK], g[k : k + CHUNK], factor) for k in range(0, len(s), CHUNK)))
    eps = torch.finfo(theta.dtype).eps
    allowed = eps * (long_sums.norm(theta) + 4 * s_norm)
    return factor if rest <= allowed else None


def rest_along(s: Tensor, g: Tensor, factor: float) -> float:
    return float(torch.linalg.vector_norm(torch.sub(s, g, alpha=factor))) ** 2


def may_be_along(s: Tensor, g: Tensor, theta: Tensor) -> bool:
    """A few elements show most steps that do not run along the gradient, at no cost; the others remain to be seen."""
    squared = float(torch.linalg.vecdot(g, g))
    if squared == 0 or not math.isfinite(squared):
        return True
    rest = math.sqrt(rest_along(s, g, float(torch.linalg.vecdot(s, g)) / squared))
    lengths = float(torch.linalg.vector_norm(theta)) + 4 * float(torch.linalg.vector_norm(s))
    return rest <= 16 * torch.finfo(theta.dtype).eps * lengths

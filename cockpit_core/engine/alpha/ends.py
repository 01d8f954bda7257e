"""Alpha needs two backward passes: the start of a step is remembered until its end has been measured."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from cockpit_core.engine.statistics import project
from cockpit_core.engine.step import StepState
from cockpit_core.foundation import long_sums
from cockpit_core.foundation.records import AlphaFit
from cockpit_core.foundation.sharded import whole
from cockpit_core.quantities.alpha import End, fit_alpha


@dataclass
class Pending:
    """The start of a step whose end is not known yet."""

    step: int
    length: float
    start: End
    layers: frozenset[str]


def observe_end(losses: Tensor, slopes: Tensor) -> End:
    """Means and sample variances (divisor B - 1) of individual losses and slopes, float64."""
    unbiased = len(losses) > 1
    return End(
        float(losses.mean()), float(slopes.mean()),
        float(losses.var(correction=1)) if unbiased else math.nan,
        float(slopes.var(correction=1)) if unbiased else math.nan,
    )  # fmt: skip


def project_on_update(
    state: StepState, update: dict[str, Tensor], update_norms: dict[str, float], gradients: dict[str, Tensor]
) -> tuple[dict[str, Tensor], bool]:
    """``g_n . s`` [B] per layer for the step just taken, and whether every layer moved along its gradient.

    Where the step is ``c g`` up to the rounding of the parameters (plain SGD, with or without clipping), the known
    projections on ``g`` serve; otherwise the kept contributions are projected. ``gradients`` are those of the backward
    pass, as far as they are still known.
    """
    slopes: dict[str, Tensor] = {}
    all_parallel = True
    for name, statistics in state.reduced.items():
        if name not in update or "gradient" not in statistics.projections:
            continue
        factor = None
        if name in gradients:
            lengths = update_norms[name], state.gradient_norms[name]
            factor = along_gradient(update[name], gradients[name], state.theta[name], *lengths)
        if factor is not None:
            slopes[name] = statistics.projections["gradient"] * factor
            continue
        all_parallel = False
        if name in state.kept.parts:
            slopes[name] = torch.cat([project(part, update[name]) for part in state.kept.parts[name]])
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


def finish(pending: Pending, state: StepState) -> AlphaFit | str:
    """The fit, once the batch after the step has been seen; or the reason why there is none."""
    losses = state.losses()
    if losses is None:
        return state.why_no_losses()
    missing = [name for name in pending.layers if "step" not in projections_of(state, name)]
    if missing:
        return f"{missing[0]} was not measured at the end of the step"
    slopes = sum(projections_of(state, name)["step"] for name in pending.layers)
    if isinstance(slopes, int):
        return "no layer has individual gradients"
    if len(slopes) != len(losses):
        return f"{len(slopes)} individual gradients for {len(losses)} losses"
    if pending.length > 0:
        slopes = slopes / pending.length
    return fit_alpha(pending.step, pending.length, pending.start, observe_end(losses, slopes))


def projections_of(state: StepState, name: str) -> dict[str, Tensor]:
    return state.reduced[name].projections if name in state.reduced else {}

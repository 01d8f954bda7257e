"""Layers of which norms alone are asked: from products of positions with each other, all layers at the end of the pass.

No gradient is formed or projected on. Whether the samples add up to the gradient shows along two directions of rank one: a
fixed one, and one along which the gradient itself is large. Where so much cancels between positions that digits would be
lost, a layer is reduced in the ordinary way.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from cockpit_core.engine.clock import Clock
from cockpit_core.engine.layer_result import Job, LayerResult, is_mean_of, reduce_parts
from cockpit_core.engine.statistics import LayerStatistics, Request
from cockpit_core.kernels.native.grams import Sides, can_take, reduce_grams
from cockpit_core.kernels.native.reducing import can_reduce
from cockpit_core.layers import ways
from cockpit_core.layers.contribution import Contribution, Outer, Positions
from cockpit_core.layers.probe import spread_signs
from cockpit_core.layers.standing_in import Tried

LEAST_LEFT = 1e-2
"""Of the squares of single positions: what is less has cancelled, and rounding of these squares would show in it."""


def sides_of(part: Contribution) -> tuple[Tensor, Tensor] | None:
    """``b`` [B, S, out] and ``a`` [B, S, in], where it is a sum of their products."""
    inner = part.part if isinstance(part, Tried) else part
    if type(inner) is Positions:
        return inner.b, inner.a
    return (inner.b[:, None], inner.a[:, None]) if type(inner) is Outer else None


def scale_of(part: Contribution) -> float:
    return part.part.scale if isinstance(part, Tried) else part.scale


def asks_norms_alone(request: Request) -> bool:
    return request.norms and not (request.dots or request.squares or request.spec is not None)


def may_wait(result: LayerResult, directions: dict[str, Tensor], job: Job) -> bool:
    """Is nothing asked of this layer but norms, and are products of positions the cheapest way to them?"""
    if not asks_norms_alone(job.request) or job.keep or job.gram or len(result.parts) != 1 or len(directions) != 1:
        return False
    part = result.parts[0]
    sides = sides_of(part)
    if sides is None or not is_mean_of(part, directions, job):
        return False
    b, a = sides
    alike = a.dtype == b.dtype == directions["gradient"].dtype and can_reduce(b, 0) and can_take(b, a)
    return alike and ways.fits(a, b) and ways.takes_products(b.shape[1], a.shape[2], b.shape[2])


def reduce_waiting(waiting: Sequence[LayerResult], job: Job, clock: Clock) -> None:
    """Into the results, which hold their directions."""
    layers = []
    for result in waiting:
        assert result.along is not None
        sides = sides_of(result.parts[0])
        assert sides is not None
        (b, a), gradient = sides, result.along["gradient"]
        fixed = spread_signs(b.shape[2], b.dtype), spread_signs(a.shape[2], a.dtype)
        layers.append(Sides(b, a, scale_of(result.parts[0]), gradient.reshape(b.shape[2], a.shape[2]), *fixed))
    for dtype in {own.b.dtype for own in layers}:
        chosen = [k for k, own in enumerate(layers) if own.b.dtype == dtype]
        for k, products in zip(chosen, clock.timed("norms", reduce_grams, [layers[k] for k in chosen]), strict=True):
            result = waiting[k]
            if products.left < LEAST_LEFT:
                reduce_parts(result, result.along or {}, job, layers[k].gradient, clock)
            else:
                result.statistics = LayerStatistics(products.norms.shape[0], products.norms, products=products)
                result.kept = list(result.parts)

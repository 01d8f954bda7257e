from __future__ import annotations

import math

from cockpit_core.quantities.base import NoValue, Quantity, Statistics, Value


class AlphaOwnBatch(Quantity):
    """Does the step overshoot on the very samples it was made from? -1 stands still, 0 valley floor, +1 opposite wall.

    A parabola through the loss ``f`` of the batch of step t at both ends of the step, ``tau = 0`` and ``T = ||s_t||``:
    least squares on ``f_T - f_0``, ``T f'_0`` and ``T f'_T`` (all in units of the loss; the two losses see the same
    samples, so only their difference counts), then ``alpha = 2 T w2 / (-w1) - 1``, and -1 where it still falls faster
    (w2 < 0). In closed form: ``q = (2 (f_T - f_0) - T f'_0 - T f'_T) / 6``, ``alpha = -(T f'_T + q) / (T f'_0 + q)``.
    Unlike Alpha it has no noise of a second batch: for plain SGD on a quadratic it is ``lr kappa - 1``, kappa the batch
    sharpness, and +1 is the edge of stochastic stability (Andreyev and Beneventano 2024, arXiv 2412.20553).
    Costs one more forward and backward pass. "AlphaOwnBatch/loss_end" is ``f_T``. No value where the forward pass cannot
    be repeated. Values above 0 are usually no problem: small batches are overshot where the whole data are not.
    """

    needs = ("gradients", "update", "far_end")
    description = "Where the step lands on its own batch: -1 stands still, 0 valley floor, +1 the opposite wall."
    question = "does the step overshoot on its own samples?"
    formula = "see below; `/loss_end` is the loss after the step"
    cost = "a forward and a backward pass"

    def measure(self, statistics: Statistics) -> Value:
        own = statistics.own_batch
        if own is None or own.line is None:
            raise NoValue("it was not measured" if own is None else own.reasons.get("far_end", "it was not measured"))
        line = own.line
        alpha = find_alpha(line.length, line.loss_end - line.loss_start, line.slope_start, line.slope_end)
        return Value(alpha, parts={"loss_end": Value(line.loss_end)})


def find_alpha(T: float, difference: float, start: float, end: float) -> float:
    """``start`` and ``end`` are ``T f'_0`` and ``T f'_T``, the products of the step with the gradients at its ends."""
    if T == 0:
        return -1.0
    q = (2 * difference - start - end) / 6
    falls, rises = start + q, end + q
    if not (math.isfinite(falls) and math.isfinite(rises)):
        raise NoValue("the loss or its gradient is not finite at the end of the step")
    if rises - falls < 0:
        return -1.0
    if falls == 0:
        raise NoValue("the loss is flat along the step")
    return -rises / falls

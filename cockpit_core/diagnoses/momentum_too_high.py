"""Momentum remembers hundreds of steps: the network goes on long after the gradient has turned."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence, number
from cockpit_core.diagnosis.limits import limit

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View


class MomentumTooHigh(Diagnosis):
    name = "momentum_too_high"
    title = "momentum is too high"
    needs = ("UpdateSize",)
    hold, after, least = 1, 4, 2
    confidence = 0.8
    explains = ("learning_rate_too_high", "data_not_shuffled", "not_finite", "dead_units", "overfitting")

    probe = "line"

    def suspects(self, view: View) -> bool:
        return view.facts.inertia >= limit("momentum") and view.t >= 20 and not view.level < 0.2

    def test(self, view: View) -> Found | None:
        inertia = view.facts.inertia
        high = inertia >= limit("momentum") and view.t < 10 / max(1e-9, 1 - inertia)
        piled = inertia >= 0.97 and view.amplification > limit("amplification")
        # Steps that are long enough and take nothing off the loss of their own batch follow where the slope once was.
        stale = view.gain_by_step < 0.003 and view.straight < limit("straight") and not view.level < 0.25
        stale = stale and len(view.trials) >= 3
        far = limit("travelled") < view.travelled < math.inf and view.weight_fall > 2  # whatever the loss does
        drifts = high and (far or view.is_blown_up)
        slow = high and view.lingers
        if not (high or piled) or (view.thrives and not (view.spike > 1.5 or stale or drifts or slow)):
            return None
        # Adam divides by the gradient's own size: its steps do not grow, they only follow where the slope once was.
        swings = view.spike > (3 if view.facts.adaptive else 1.5)
        slow = slow or (view.struggles and view.t >= (60 if view.facts.adaptive else 40))
        remembers = inertia >= 0.995 and view.t >= 80  # more than the run is old
        slow = slow or (remembers and view.lags and not view.thrives)
        harmful = slow or swings or stale or drifts or view.broken or (piled and not view.drop > 0.5)
        harmful = harmful and not view.does_well
        text = (
            f"Momentum {inertia:g} is too high: each step is an average over the gradients of about "
            f"{number(1 / max(1e-9, 1 - inertia))} steps, and the run has had {view.t}"
        )
        if view.lingers:
            text += f", and the loss is still {number(100 * view.level)} % of that of a constant guess"
        away = f"; the weights have moved {number(view.travelled)} times their initial length."
        text += away if drifts else "."
        remedy = "Use 0.9. If you need more, lower the learning rate with it: 10 times for 0.99, 100 times for 0.999."
        numbers = [evidence("momentum", inertia)]
        if view.amplification == view.amplification:
            numbers.append(evidence("amplification", view.amplification))
        if drifts:
            numbers.append(evidence("travelled", view.travelled))
        if stale:
            numbers.append(evidence("gain_by_step", view.gain_by_step))
        return Found(text, remedy, numbers, severity="likely" if harmful else "advice", since=view.history.began)

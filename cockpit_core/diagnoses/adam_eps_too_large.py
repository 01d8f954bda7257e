"""Adam's eps outweighs the gradients: it no longer adapts, and its steps are tiny."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence, number
from cockpit_core.diagnosis.limits import limit

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View

USUAL = 0.3  # of the learning rate: Adam's step for each parameter


class AdamEpsTooLarge(Diagnosis):
    name = "adam_eps_too_large"
    title = "Adam's eps is too large"
    needs = ("UpdateSize",)
    hold, after, least = 1, 3, 2
    confidence = 0.8
    explains = ("learning_rate_too_low", "not_learning", "labels_random", "label_noise")
    rivals = {  # noqa: RUF012
        "clipping_too_hard": "a run with eps = 1e-8. Adam is indifferent to clipping, unless eps outweighs the gradients.",
    }

    def test(self, view: View) -> Found | None:
        eps = view.facts.eps
        if not view.facts.adaptive or not eps > 1e-4 or view.clipped < 0.2:
            return None
        count = sum(view.facts.sizes)
        steps = view.last("UpdateSize") / (view.rate * math.sqrt(max(1, count)))  # about 0.3 to 1 where Adam adapts
        slow = steps < 0.15 and view.t >= 15 and eps >= 1e-3 and (view.lingers or not view.thrives)
        # Steps 16 times as long would do 16 times as much, while most is left to learn.
        crawls = (
            view.straight > 0.9
            and view.t >= 80
            and (view.level > 0.5 or (view.level != view.level and view.drop < 0.5))
        )
        # The run is over, and longer steps would have done as well: a low rate, if it were not for eps.
        crawls = crawls or (
            view.finished and view.straight > 0.9 and view.update < limit("update_low") and view.level > 0.05
        )
        if not (steps < limit("eps_steps") or slow) or (view.learns and not (view.suffers or view.lingers or crawls)):
            return None
        text = (
            f"Adam's eps of {eps:g} is larger than the gradients: its steps are {number(100 * steps / USUAL)} % "
            "as long as they would be without it."
        )
        remedy = f"Use eps = 1e-8, or multiply the learning rate by about {number(USUAL / max(steps, 1e-6))}."
        # Adam's own steps, and short by any measure: no learning rate was chosen to make up for it.
        short = steps < limit("eps_steps") and eps >= 1e-2 and view.update < limit("update_low") and not view.learns
        harmful = short or view.suffers or view.lingers or crawls or (view.stuck and view.t >= 20)
        numbers = [evidence("step per parameter over lr", steps)]
        return Found(text, remedy, numbers, severity="likely" if harmful else "advice", since=view.history.began)

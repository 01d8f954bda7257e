"""Weight decay pulls the weights to zero faster than the gradient can build them up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence, number
from cockpit_core.diagnosis.limits import limit

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View

VANISHED = 0.1  # of their initial length
LEFT = 0.03  # of the loss of a constant guess: less is hardly worth a word
LIVES = 4  # times as long as decay takes to forget


class WeightDecayTooHigh(Diagnosis):
    name = "weight_decay_too_high"
    title = "weight decay is too high"
    needs = ("ParamNorm",)
    hold, after, least = 1, 3, 2
    confidence = 0.9
    explains = (
        "learning_rate_too_high",
        "labels_random",
        "label_noise",
        "not_learning",
        "learning_rate_too_low",
        "vanishing_gradients",
        "dead_units",
        "init_too_small",
    )
    rivals = {  # noqa: RUF012
        "schedule_too_fast": "a run of 50 steps with weight_decay=0. If it is as slow, it is the schedule.",
        "clipping_too_hard": "a run of 50 steps with weight_decay=0. If it is as slow, it is the clipping.",
    }

    @staticmethod
    def _outweighs(view: View, share: float) -> bool:
        """In the end decay pulls harder than the loss does, and has shortened the weights: at a minimum the two are equal."""
        left = view.level > LEFT if view.level == view.level else view.drop < 0.9
        over = view.finished and share > limit("decay_share") and view.weight_fall < 0.8 and left
        return over and not view.right_now > 0.93 and not view.does_well

    @staticmethod
    def _undoes(view: View, share: float) -> bool:
        """Decay by itself (AdamW) pulls harder than the whole step, for many times as long as it takes to forget: what gradients
        build up is gone again. Weights need not become shorter for that."""
        forgets = view.facts.decoupled and view.set_rate * view.rate_mean * view.facts.weight_decay * view.t > LIVES
        left = view.level > LEFT if view.level == view.level else view.drop < 0.8
        return forgets and view.settled and share > limit("decay_share") and left and not view.does_well

    def test(self, view: View) -> Found | None:
        share = view.decay_share
        # Nothing else takes nearly all of the weights away; when they are gone, decay has nothing left to pull at.
        vanished = view.facts.weight_decay > 0 and view.weight_fall < VANISHED and not view.learns and view.t >= 20
        if vanished and not view.clipped < limit("clipped"):
            return self._say(view, share)
        if not share > 0 or view.clipped < limit(
            "clipped"
        ):  # clipped: what is left of a gradient is no match for decay
            return None
        if view.first("dead") >= limit("dead0") and view.typical("dead") >= limit("dead"):
            return None  # dead from the start: nothing but decay is left to move the weights
        if view.matrix_share(view.silent) >= 0.3 and view.weight_fall > 0.5:
            return None  # the same, seen in gradients of exactly zero
        strong = share > limit("decay_share") and view.weight_fall < 0.95 and not view.drop > 0.9
        soon = view.t < 20 and view.weight_fall < 0.9  # whether it lags is known later
        strong = strong and (view.lags or soon or view.level != view.level)
        held_down = view.struggles and view.t >= 80 and not view.improves
        shrinking = share > 0.3 and view.weight_fall < 0.85 and held_down
        # The loss falls, and slowly, while the weights lose a quarter of their length: they pull in two directions.
        # A loss that falls steadily may be as fast without it.
        patient = not view.improves or (view.t >= 80 and view.drop < 0.65 * view.usual_drop)
        shrinking = shrinking or (
            share > 0.4 and view.weight_fall < 0.75 and view.struggles and view.t >= 100 and patient
        )
        # At a minimum decay and gradient balance: that is what decay is for.
        settled = view.learns if view.level != view.level else view.level < 0.5
        least = 0.25 if view.level == view.level else 0.8  # of other losses nobody knows how far they could have come
        shrunk = share > least and view.weight_fall < 0.6 and not view.thrives and not view.level < 0.8
        shrunk = shrunk and ((view.lags and not view.improves) or (view.weight_fall < 0.4 and view.t >= 20))
        # In the end they are shorter, and much is left that is not the noise of real targets.
        worn = view.wanting and not view.facts.may_be_noise and view.weight_fall < 0.6 and share > 0.2
        # Healthy runs have a pull of 7 % at the most by then; where it is a third, the two pull at different ends.
        over = view.finished and view.wanting and not view.facts.may_be_noise and not view.of_texts
        worn = worn or (
            over and ((view.weight_fall < 0.85 and share > 0.3) or (view.weight_fall < 0.7 and share > 0.25))
        )
        # Two thirds of their length are gone, noise in the targets or not.
        worn = worn or (view.finished and view.wanting and view.weight_fall < 0.4 and share > 0.1)
        worn = worn or self._outweighs(view, share) or self._undoes(view, share)
        if not ((strong or shrinking) and not settled) and not shrunk and not worn:
            return None
        if view.weight_scale > 2.8:
            return None  # they were far too long at the start
        gone = view.weight_fall < 0.1 or worn  # nothing else takes nearly all of them away
        if view.noise > 0.7 and not share > limit("decay_share") and not gone:
            return None  # samples do not agree: nothing keeps weights from shrinking
        return self._say(view, share)

    @staticmethod
    def _say(view: View, share: float) -> Found:
        decay = view.facts.weight_decay
        pull = f"its pull on the weights is {number(100 * share)} % of the gradient's, and " if share > 0.1 else ""
        shrunk = f"the weights have shrunk to {number(100 * view.weight_fall)} % of their initial length"
        text = f"Weight decay {number(decay)} is too high: {pull}"
        text += f"{shrunk}." if view.weight_fall < 0.95 else "what steps build up is gone again soon."
        factor = max(10.0, min(share / 0.02, 1000.0) if share == share else 10.0)
        remedy = f"Divide weight_decay by about {number(factor)}, to {number(decay / factor)}."
        return Found(
            text,
            remedy,
            [evidence("decay_share", share), evidence("ParamNorm, now over first", view.weight_fall)],
            since=view.history.began,
        )

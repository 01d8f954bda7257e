"""The schedule has taken the learning rate to almost nothing while there is still much to learn."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence, fallen, number
from cockpit_core.diagnosis.limits import limit

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View


EARLY = 15  # steps
GONE = 0.3  # of the highest rate
SHORT, MEAN = (
    5e-3,
    0.25,
)  # of the length of the weights; of the highest rate: half of what cosine and linear schedules have


class ScheduleTooFast(Diagnosis):
    name = "schedule_too_fast"
    title = "the learning rate decays too fast"
    needs = ("LearningRate",)
    hold, after, least = 2, 3, 3
    confidence = 0.85
    explains = ("learning_rate_too_low", "not_learning", "label_noise", "labels_random")

    probe = "line"

    def suspects(self, view: View) -> bool:
        return view.rate_life < 60 and view.rate_fall < 0.6 and view.lags

    def test(self, view: View) -> Found | None:
        if (hopeless := self._is_hopeless(view)) is not None:
            return hopeless
        if view.t < EARLY or not view.has_seen(4):
            return None
        much_left = view.level > 0.25 or (view.level != view.level and not view.drop > 0.5)
        life = view.rate_life
        if (lost := self._is_starved(view) or self._is_wasted(view) or self._was_short(view)) is not None:
            return lost
        over = (
            life < 20 and view.rate_fall < 0.1 and (view.level > 0.3 or not view.thrives)
        )  # whatever was learned by then
        if not much_left or view.history.resumed or view.drop > 0.8:
            return None
        if view.thrives and not view.improves and not over:
            return None
        if over or (life < 20 and view.rate_fall < 0.5 and view.suffers):
            text = f"The schedule is too fast: the learning rate halves every {number(life)} steps, and {fallen(view.drop)}."
            remedy = "Let the rate fall over the whole run, or keep it constant until the loss no longer falls."
            return Found(text, remedy, [evidence("rate_fall", view.rate_fall), evidence("level", view.level)])
        tried = view.rate_fall < 0.4 and view.lags and view.straight > 0.7
        if life < 60 and (tried or (view.rate_fall < 0.25 and view.struggles and view.t >= 80)):
            text = f"The schedule is too fast: the learning rate halves every {number(life)} steps, and {fallen(view.drop)}"
            text += "; trial steps many times longer would still take as much more off the loss." if tried else "."
            remedy = "Let the rate fall over the whole run, or keep it constant until the loss no longer falls."
            numbers = [evidence("rate_fall", view.rate_fall), evidence("level", view.level)]
            numbers += [evidence("straight", view.straight)] if tried else []
            return Found(text, remedy, numbers)
        if not view.rate_fall < limit("rate_fall"):
            return None
        # Cosine and linear schedules end at zero too, and are meant so: they have spent half of their time above a half.
        # Rates that fall in a few large steps are meant so too.
        distinct = len({seen.get("LearningRate") for seen in view.late})
        if (
            not view.lags
            or view.thrives
            or not view.rate_mean < limit("rate_mean")
            or view.t > 1000
            or distinct < min(8, view.n - 1)
        ):
            return None
        text = (
            f"The schedule is too fast: at step {view.t} the learning rate is {number(100 * view.rate_fall)} % of "
            f"its maximum, and {fallen(view.drop)}."
        )
        remedy = (
            f"Let the rate fall {number(max(3.0, 300 / max(1, view.t)))} times more slowly, or keep it constant "
            "until the loss no longer falls."
        )
        return Found(text, remedy, [evidence("rate_fall", view.rate_fall), evidence("level", view.level)])

    @staticmethod
    def _is_hopeless(view: View) -> Found | None:
        """The rate has fallen by the same factor at every step since the first one: all steps that there will ever be add up to
        a few, for weights that nothing was trained into."""
        life = view.rate_life
        total = life / math.log(2)
        since_start = abs(math.log2(max(view.rate_fall, 1e-30)) + (view.t - view.history.began) / life) < 0.1
        much = view.level > 0.6 or (view.level != view.level and view.drop < 0.5)
        if not view.rate_fall < GONE:
            return None  # the steps that are left may be enough: so they are for easy data
        if not total < limit("rate_total") or not since_start or not much or not view.are_fresh(view.facts.layers):
            return None
        text = (
            f"The schedule is too fast: the learning rate halves every {number(life)} steps, so that all steps of the training "
            f"will add up to about {number(total)} at its highest value."
        )
        remedy = (
            "Let the rate fall over the whole run (a scheduler that counts epochs must not be stepped at every batch), or "
            "keep it constant until the loss no longer falls."
        )
        numbers = [evidence("rate_total", total), evidence("rate_fall", view.rate_fall)]
        return Found(text, remedy, numbers, at_once=True)

    @staticmethod
    def _was_short(view: View) -> Found | None:
        """The run is over, none of its steps was long, and far longer ones would have done as well: the rate that they began with
        would have brought more, had it lasted."""
        short = view.history.highest.get("update", 1.0) < SHORT and view.straight > limit("straight")
        left = view.level > 0.05 and view.are_fresh(view.facts.layers) and not view.does_well
        if not (view.finished and short and view.rate_mean < MEAN and left) or view.history.resumed:
            return None
        text = (
            f"The schedule is too fast: on average the rate was {number(100 * view.rate_mean)} % of its highest value, and "
            f"trial steps 16 times as long as the last ones would take {number(16 * view.straight)} times as much off the loss."
        )
        remedy = "Let the rate fall more slowly, or keep it constant until the loss no longer falls."
        numbers = [evidence("rate_fall", view.rate_fall), evidence("straight", view.straight)]
        return Found(text, remedy, numbers, since=view.history.began, at_once=True)

    @staticmethod
    def _is_wasted(view: View) -> Found | None:
        """Most of the run was spent at a rate of nothing, by whatever schedule. All healthy ones end there, if at all."""
        left = view.level > 0.15 if view.level == view.level else not view.drop > 0.9
        early = view.t < (20 if view.level > 0.5 else 60)
        if not view.rate_gone > limit("rate_gone") or not left or early or view.history.resumed or view.does_well:
            return None
        text = (
            f"The schedule is too fast: since step {view.history.rate_gone} the learning rate is below a thousandth of its "
            f"highest value ({number(view.rate)} now), so that the last {number(100 * view.rate_gone)} % of the run changed "
            "nothing."
        )
        remedy = (
            "Let the rate fall over the whole run (a scheduler that counts epochs must not be stepped at every batch), or "
            "keep it constant until the loss no longer falls."
        )
        return Found(text, remedy, [evidence("rate_gone", view.rate_gone), evidence("rate_fall", view.rate_fall)])

    @staticmethod
    def _is_starved(view: View) -> Found | None:
        """All steps to come will not do what is left, at the slope that the loss has now."""
        life = view.rate_life
        left = view.rate_fall * life / math.log(2)  # in steps at the highest rate
        much = view.level > 0.15 and view.final_level > 0.08 and not view.does_well
        if not left < limit("steps_left") or not much or view.t < 60 or view.history.resumed:
            return None
        text = (
            f"The schedule is too fast: the learning rate halves every {number(life)} steps. All steps still to come add up to "
            f"about {number(left)} at its highest value, and the loss is still {number(100 * view.level)} % of that of a constant "
            "guess."
        )
        remedy = "Let the rate fall over the whole run, or keep it constant until the loss no longer falls."
        return Found(text, remedy, [evidence("steps_left", left), evidence("level", view.level)])

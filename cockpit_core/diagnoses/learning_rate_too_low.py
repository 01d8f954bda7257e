"""The samples agree where to go, nothing stands in the way, and the steps are far too short to get there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence, fallen, number
from cockpit_core.diagnosis.limits import limit

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View


LONG_WARMUP = 150  # steps: a rate that has to rise first is given so long
LATE = 200  # steps
SHOWS = 0.05  # share of the loss: several times what batches differ from one another in some hundred losses
SHORT = 5e-3  # of the length of the weights: healthy runs from scratch take longer steps at some time
PLATEAU, AT_CHANCE = 250, 0.985  # steps that a first plateau may take; a share of chance above which nothing is learned
GONE = 0.25  # of the highest learning rate, on average: a schedule has taken it away
SETTLED, GROWN, LEAVING = 20, 1.6, 0.9
"""A plateau is being left where steps are so many times as long as at this step; the share of chance above which that counts."""


class LearningRateTooLow(Diagnosis):
    name = "learning_rate_too_low"
    title = "the learning rate is too low"
    needs = ("Alpha", "HessMaxEV", "probe/line")
    hold, after, least = 1, 4, 2
    confidence = 0.9
    explains = ("not_learning", "labels_random", "label_noise")
    probe = "line"

    def suspects(self, view: View) -> bool:
        never_long = (
            view.history.highest.get("update", 1.0) < SHORT and view.t >= 20
        )  # whatever is learned, in such steps
        return never_long or (not view.learns and (view.update < 2 * limit("update_low") or view.struggles))

    @staticmethod
    def _crawls(view: View) -> bool:
        """It learns, and far too slowly: steps are short, and longer ones would do as well, or the loss falls as steadily as
        short steps let it."""
        straight = view.straight > 0.9 and len(view.trials) >= 3 and view.update < 0.5 * limit("update_low")
        # Of a loss without a known chance a network that was trained before may have little left to learn.
        fresh = view.level != view.level and view.drop < 0.6 and view.are_fresh(view.facts.layers)
        if straight and view.t >= 100 and (view.level > 0.6 or fresh) and view.trend < -4:
            return True  # 16 times the rate would do, and most is left to learn
        if view.t < 60 or not view.has_seen(9) or not view.lags or not view.drop < 0.8 * view.usual_drop:
            return False
        tried = 0.95 < view.straight < 1.1 and view.update < 2 * limit("update_low") and len(view.trials) >= 3
        return tried or (view.update < 0.6 * limit("update_low") and view.trend < -4 and not view.straight < 0.9)

    @staticmethod
    def _is_short(view: View) -> bool:
        """No step of the whole run was longer than usual ones begin with, and far longer ones would have done as well."""
        longest = view.history.highest.get("update", 1.0)
        fresh = view.are_fresh(view.facts.layers)  # what was trained before may want short steps
        if fresh and SHORT > longest >= limit("update_low"):
            lasts = view.transfer > 0.1 or view.transfer_overall > 0.1  # what a step gains, samples have in common
            return view.finished and view.straight > limit("straight") and lasts and not view.of_texts
        return view.finished and longest < limit("update_low") and view.straight > (0.5 if fresh else 0.85)

    @staticmethod
    def _is_confirmed(view: View) -> bool:
        """Late in a run that has most of its loss left: what a step takes off its own batch is seen in the batches that follow,
        and far longer steps would take off far more. Noise that nobody could learn would leave nothing of a step."""
        if LearningRateTooLow._is_short(view):
            left = view.level > 0.05 if view.level == view.level else view.drop < 0.9
            sure = view.straight > 0.9 and view.are_fresh(view.facts.layers)
            if view.of_texts and view.level < (0.4 if sure else 0.7):  # of which much is left in any case
                return False
            return view.level > 0.25 or (left and view.are_fresh(view.facts.layers) and not view.does_well)
        if not (view.finished or view.t >= LATE) or len(view.trials) < 3:
            return False
        if not view.update < 2 * limit("update_low") * min(1.0, view.rate_fall):  # as long as a schedule let them be
            return False
        left = view.level > 0.6 or (view.level != view.level and view.struggles)
        noisy = view.noise > 1 and not view.transfer > 0.5  # samples that do not agree let little through at any rate
        # Far more than a step gains: its own batch was judged with other units dropped.
        seen = (0.15 < view.transfer < 5 or 0.15 < view.transfer_overall < 5) and not view.valid_accuracy > 0.85
        return left and not noisy and seen and view.straight > 0.4 and view.gain_by_step < 0.01

    @staticmethod
    def _is_plateau(view: View) -> bool:
        """Nothing is learned yet, and steps are as long as the gradient is (SGD): many healthy networks begin so, at any rate, and
        their gradient grows all the while. When they have had their time, samples that do not agree let nothing through."""
        short = view.update < 0.1 * limit("update_low") or 0 < view.gain_by_step < 0.05 * limit("gain_by_step")
        lengths = [length for o in view.late if o.step >= SETTLED and (length := o.get("UpdateSize")) == length]
        grows = len(lengths) > 1 and lengths[-1] > GROWN * lengths[0]  # momentum has been built up before
        if view.facts.adaptive or not view.level > (LEAVING if grows else AT_CHANCE) or short:
            return False
        return (view.t < PLATEAU and not view.finished) or view.noise > 0.8

    @staticmethod
    def _weigh(view: View, crawls: bool) -> tuple[float, str] | None:
        """By which factor, and what says so."""
        late = view.t >= 45 and view.has_seen(9)
        tiny = view.update < 0.1 * limit("update_low") and not view.noise >= 10 and not view.drop > 0.2
        tiny = tiny and not view.level < 0.9
        # Steps that are short by any measure do not make up for it later, where their length is that of the rate. Those of
        # SGD are as long as the gradient, which a network that leaves its plateau makes many times longer, and momentum too.
        soon = view.n >= 3 and view.facts.adaptive and view.update < 0.67 * limit("update_low") and view.level > 0.9
        long_way = (late or soon) and view.steps_to_go_min > limit("steps_to_go") and view.drop < 0.2
        gentle = late and view.edge < limit("edge_low") and view.drop < 0.5 and view.noise < 10
        known = view.level == view.level or view.steps_to_go_min > 0  # else it may be a network that is good already
        short = (late and known and view.update < limit("update_low") and view.stuck and view.noise < 1.5) or tiny
        # What steps gain on their own samples should show by now, and does not: it is not their length.
        unseen = view.gain_by_step * view.t > SHOWS and view.transfer < 0.1
        short = short and not view.steps_to_go_min < 200 and not unseen
        # Where chance is not known, it may be a network that is good already.
        if view.creeps and view.level == view.level and not view.gain > 0.1:
            return 16.0, (
                f"a step takes {number(100 * view.gain_by_step)} % off the loss of its batch; a trial step 16 times as long takes "
                f"{number(16 * view.straight)} times as much"
            )
        if crawls and view.straight > 0.4:
            return (
                8.0,
                f"a trial step 16 times as long takes {number(16 * view.straight)} times as much off the loss of its batch",
            )
        if long_way:
            return view.steps_to_go_min / 100, f"at this slope it needs {number(view.steps_to_go_min)} more steps"
        if gentle:
            room = 1 / max(view.edge, 1e-6)  # flat, or bent the other way
            return 0.3 * room, f"steps {number(room)} times as long would still be stable"
        if short or crawls:
            share = f"a step is {number(100 * view.update)} % of the length of the weights"
            return 5e-3 / max(view.update, 1e-12), share
        return None

    def test(self, view: View) -> Found | None:
        # By a schedule, if it held the rate back for most of the run: what it does in the end was too low before, too.
        fallen_rate = view.rate_fall < 0.5 and not view.rate_mean > limit("rate_mean")
        warms_up = view.rate_rises and view.t < LONG_WARMUP
        decays = view.rate_mean < GONE  # schedule_too_fast tells it
        held_back = (
            (fallen_rate and (decays or not self._is_short(view)))
            or view.clipped < 0.5
            or warms_up
            or bool(view.silent)
        )
        confirmed = self._is_confirmed(view)
        tried = self._is_short(view) or (confirmed and view.straight > limit("straight"))
        far = view.travelled > (0.75 if tried else 0.5 if confirmed else 0.1)
        if held_back or far or view.history.resumed or view.broken or self._is_plateau(view):
            return None
        crawls = confirmed or self._crawls(view)
        if view.learns and not crawls:
            return None
        if (weighed := self._weigh(view, crawls)) is None:
            return None
        factor, why = weighed
        factor = min(100.0, max(3.0, factor))
        text = f"The learning rate {number(view.set_rate)} is too low: {fallen(view.drop)}, and {why}."
        remedy = f"Multiply the learning rate by about {number(factor)}, to {number(view.set_rate * factor)}."
        if view.rate_rises:
            text = f"{text[:-1]}; it still rises."
            remedy = (
                f"Shorten the warm-up: after {view.t} steps the rate should be about {number(factor)} times as high."
            )
        numbers = [
            evidence("steps_to_go", view.steps_to_go_min),
            evidence("edge", view.edge, limit="edge_low"),
            evidence("update", view.update, limit="update_low"),
            evidence("gain_by_step", view.gain_by_step),
            evidence("straight", view.straight),
        ]
        return Found(text, remedy, numbers, since=view.history.began)

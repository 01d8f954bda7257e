"""The steps are longer than the loss is smooth: it rises, jumps, or ends on the opposite wall of its valley."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence, number, what_is_left
from cockpit_core.diagnosis.limits import limit

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View


LATE = 250  # steps
LONG = 0.08  # of the length of all weights


class LearningRateTooHigh(Diagnosis):
    name = "learning_rate_too_high"
    title = "the learning rate is too high"
    needs = ("UpdateSize", "HessMaxEV", "Alpha", "probe/line")
    hold, after, least = 1, 0, 2
    confidence = 0.9
    explains = (
        "not_finite",
        "not_learning",
        "labels_random",
        "label_noise",
        "dead_units",
        "graph_detached",
        "vanishing_gradients",
        "saturated_units",
        "overfitting",
    )
    probe = "line"

    def suspects(self, view: View) -> bool:
        return (view.update > 0.05 and not view.thrives) or view.spike > 1.5 or view.struggles

    def test(self, view: View) -> Found | None:
        signs = {item.name: (words, item) for words, item in reversed(self._signs(view))}  # nothing is said twice
        if not signs:
            return None
        seen = list(reversed(signs.values()))
        target, how = self._suggest(view)
        factor = view.set_rate / target if target > 0 else 10.0
        text = f"The learning rate {number(view.set_rate)} is too high: {'; '.join(words for words, _ in seen)}."
        remedy = (
            f"Divide the learning rate by about {number(max(2.0, factor))}, to "
            f"{number(min(target, view.set_rate / 2))} ({how})."
        )
        # Where the loss takes the logarithm of a probability that rounds to zero, that is what makes it infinite.
        return Found(text, remedy, [item for _, item in seen], alone=view.now("plain_log") > 0 and view.broken)

    @staticmethod
    def _signs(view: View) -> list:
        signs, poor = [], view.drop < 0.5 or view.broken
        if view.silent and view.dead >= limit("dead") and view.first("dead") < limit("dead0"):
            words = (
                f"it killed units, and {len(view.silent)} of {len(view.facts.layers)} tensors get no gradient any more"
            )
            signs.append((words, evidence("dead", view.dead)))
        if view.spike > limit("spike") and poor and view.lasting:
            signs.append(
                (f"the loss rose to {number(view.spike)} times its first value", evidence("spike", view.spike))
            )
        # It jumped at the start, the weights were carried off, and it never got where it should be.
        thrown = view.rose > 4 and view.t >= 100 and view.lags and view.update_max > 0.8 * limit("update")
        if thrown and not view.starts_small and not (view.spike > limit("spike") and poor and view.lasting):
            words = (
                f"the loss rose to {number(view.rose)} times its first value, and is still {number(100 * view.level)} % of that "
                "of a constant guess"
            )
            signs.append((words, evidence("spike", view.rose)))
        # So it did here, in shorter steps, and nothing at all was learned since.
        scattered = (
            view.rose > 2
            and view.update_max > 0.08
            and view.t >= 100
            and view.stuck
            and not view.spike > limit("spike")
        )
        if scattered and not thrown and not view.is_long and not view.starts_small:
            words = (
                f"the loss rose to {number(view.rose)} times its first value in steps of up to {number(100 * view.update_max)} "
                "% of the length of all weights, and nothing was learned since"
            )
            signs.append((words, evidence("update", view.update_max)))
        more = (LearningRateTooHigh._weight_signs, LearningRateTooHigh._end_signs, LearningRateTooHigh._valley_signs)
        return signs + [sign for find in more for sign in find(view)]

    @staticmethod
    def _weight_signs(view: View) -> list:
        """How far steps have taken the weights."""
        signs, none = [], view.drop < 0.3 or view.broken
        if view.is_long:
            worst = max(view.update_max, view.update)
            length = f"{number(worst)} times" if worst >= 10 else f"{number(100 * worst)} % of"
            signs.append((f"a step was {length} the length of all weights", evidence("update", worst)))
        lost = view.was_good and not view.facts.loss.startswith("BCE")
        far = view.is_far and (lost or not view.learns) and view.level > 0.95 and view.struggles
        away = view.travelled > limit("travelled") and none and view.update > 0.02
        wide = view.bent_four > 0.5 and view.update_max < LONG  # trial steps say so: four times as long ones would gain
        if (far or away) and not view.starts_small and not wide:
            words = f"the weights have moved {number(view.travelled)} times their initial length"
            if far:
                words += f", and the loss is {'no longer' if lost else 'no'} better than chance"
            if not math.isfinite(view.travelled):
                words = "the weights are not finite any more"
            signs.append((words, evidence("travelled", view.travelled)))
        return signs

    @staticmethod
    def _end_signs(view: View) -> list:
        """Late in a run, or when it is over."""
        signs = []
        long = view.update > 0.02 and view.travelled > 1.8 and view.weight_fall > 1.8
        thrown_off = (
            view.update_max > 0.1 and view.travelled > 3 and view.weight_fall > 3 and not view.does_fairly
        )  # whatever a schedule did later
        single = not view.now("label_count") > view.batch  # of texts much is left in any case
        far = view.update_max > LONG  # short steps take small weights far as well, if they all go one way
        if (view.finished and view.wanting and (long or (thrown_off and single))) or (view.is_blown_up and far):
            words = (
                f"steps were up to {number(100 * view.update_max)} % of the length of all weights, which have become "
                f"{number(view.weight_fall)} times as long, and {what_is_left(view.level, view.drop)}"
            )
            if not view.starts_small and not view.weight_scale < 0.4:
                signs.append((words, evidence("update", view.update)))
        before = view.fall[0]
        risen = view.level - before * view.level  # since a quarter of the run ago, as a share of chance
        rises = view.finished and view.wanting and before < 0.75 and view.update > 5e-3 and risen > 0.08
        if rises and single and not view.facts.may_be_noise:
            words = (
                f"the loss is {number(1 / before)} times what it was a quarter of the run ago, with steps of "
                f"{number(100 * view.update)} % of the length of all weights"
            )
            if not view.starts_small and view.level == view.level:
                signs.append((words, evidence("rise", 1 / before)))
        if LearningRateTooHigh._is_lost(view):
            words = (
                f"a step was {number(100 * view.update_max)} % of the length of all weights, they have moved "
                f"{number(view.travelled)} times their initial length, and what a step gains is lost with the next ones"
            )
            signs.append((words, evidence("travelled", view.travelled)))
        return signs

    @staticmethod
    def _is_lost(view: View) -> bool:
        """Late in a run that has learned next to nothing: thrown far by its first steps, it still takes long ones, and they help
        their own samples only."""
        late = (view.finished or view.t >= LATE) and view.struggles and view.level > 0.8 and not view.starts_small
        late = late and not view.weight_scale < 0.4
        return late and view.update_max > 0.1 and view.travelled > 1.2 and view.update > 3e-3 and view.transfer < 0.06

    @staticmethod
    def _valley_signs(view: View) -> list:
        """What curvature and trial steps say."""
        signs = []
        if view.edge > limit("edge") and view.drop < 0.15 and view.has_seen(4) and view.t >= 25:
            words = f"the largest eigenvalue is {number(view.edge)} times the limit at which steps grow"
            signs.append((words, evidence("edge", view.edge)))
        # Where nothing is learned for another reason, different batches decide alpha; curvature and length would know.
        beyond = view.alpha > limit("alpha") and not view.edge < 0.5 and view.update > 5e-3 and view.level > 0.8
        beyond = beyond and not any(trial.whole > 2 * trial.quarter for trial in view.trials)  # tried on one batch
        beyond = beyond and (view.edge == view.edge or len(view.trials) > 1)
        if beyond and view.drop < 0.2 and view.has_seen(8) and view.t >= 40:
            signs.append(
                (
                    f"typical steps end beyond the bottom of their valley (alpha {number(view.alpha)})",
                    evidence("alpha", view.alpha),
                )
            )
        if view.goes_beyond:
            words = (
                "trial steps of a quarter of the length take more off the loss of their batch than whole ones do"
                if view.bent < 0.25
                else "steps only a little longer raise the loss of their own batch, and nothing is learned"
            )
            signs.append((words, evidence("bent", view.bent)))
        return signs

    @staticmethod
    def _suggest(view: View) -> tuple[float, str]:
        if view.edge > 1:
            return 0.5 * view.rate / view.edge, "half of the limit 2 / lambda is a safe start"
        first = [o.get("UpdateSize") / (o.get("ParamNorm") or math.nan) for o in view.history.early]
        size = max([value for value in first if math.isfinite(value)][:2], default=math.nan)  # before it broke
        if size > 0.02:
            return view.set_rate * 0.01 / min(size, 10.0), "steps of about 1 % of the weights are usual"
        return view.set_rate / 10, "then look again"

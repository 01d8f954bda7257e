"""One label is so common that always giving it is nearly right, and that is what the network does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence, number
from cockpit_core.diagnosis.facts import BINARY_LOSSES
from cockpit_core.diagnosis.limits import limit
from cockpit_core.diagnosis.reading import mean

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View


BINARY_REMEDY = (
    "Weight the rare answer in the loss (pos_weight=negatives / positives), or draw balanced batches; look at recall."
)
SURE = 0.02  # of the loss of a guess: one answer for everything has been learned
UNEVEN, BEHIND = 8, 0.15  # odds of the commonest class; share of right answers that validation has less than training
BEYOND = 50  # times the loss of a guess: a sum over samples, and no mean


class ClassImbalance(Diagnosis):
    name = "class_imbalance"
    title = "one class dominates"
    severity = "advice"
    needs = ("label_top_share",)
    hold, after, least = 4, 40, 10
    at_end = True
    confidence = 0.7
    explains = ("overfitting", "labels_random", "label_noise")

    @staticmethod
    def _take_turns(view: View) -> bool:
        """Whole batches have one label, and not all the same: they are sorted, and no class dominates."""
        if view.facts.loss in BINARY_LOSSES:
            shares = view.every("target_mean", 24)
            return len(shares) > 1 and min(shares) < 0.1 and max(shares) > 0.9
        pairs = zip(view.every("label_min", 24), view.every("label_max", 24), strict=False)
        return view.typical("label_count") >= 8 and len({low for low, high in pairs if low == high}) > 1

    @staticmethod
    def _is_never(view: View, share: float) -> Found | None:
        """Of two answers one is hardly ever right, and the network never gives it, or always does. A rare one may be beyond
        reach: that is an alarm only once the training is over."""
        border = 0.5 if view.facts.loss == "BCELoss" else 0.0
        lows, highs = view.every("output_min", 6), view.every("output_max", 6)
        one_sided = len(lows) >= 4 and (max(highs) < border or min(lows) > border)
        if not share > limit("label_top_share") or not one_sided or not view.t >= 80:
            return None
        text = (
            f"{number(100 * share)} % of the targets are the same, and the network gives that answer always: it has never found "
            "the other one."
        )
        over = view.finished and share > 0.95
        return Found(text, BINARY_REMEDY, [evidence("label_top_share", share)], severity="likely" if over else "advice",
                     since=view.history.began)  # fmt: skip

    @staticmethod
    def _is_unlearned(view: View, share: float, odds: float) -> Found | None:
        """Validation is right less often than always giving the commonest label of the training would be: it has others, and the
        network gives that one."""
        few = view.classes_in_use < 0.5 * view.last("signal/classes")
        if not ((share > 0.4 and odds > 4) or few) or not view.typical("label_count") >= 16:
            return None
        even = 1 / max(2.0, view.last("signal/classes"))
        little = view.valid_accuracy - even < 0.5 * (view.right_now - even)  # of what was learned in training
        if not view.valid_accuracy < share - 0.05 or not little or not view.settled:
            return None
        common = f"{number(100 * share)} % of the training labels are the same"
        if not (share > 0.4 and odds > 4):
            common = (
                f"Training labels are as uneven as if there were {number(view.classes_in_use)} classes, not "
                f"{number(view.last('signal/classes'))}"
            )
        text = (
            f"{common}, and in validation {number(100 * view.valid_accuracy)} % of the answers are right: the network has not "
            "learned the other classes."
        )
        remedy = (
            "Weight the classes in the loss (weight=1 / share), or draw balanced batches; look at recall, not accuracy."
        )
        numbers = [evidence("label_top_share", share), evidence("valid_accuracy", view.valid_accuracy)]
        return Found(text, remedy, numbers, severity="likely", since=view.history.began)

    @staticmethod
    def _falls_behind(view: View, share: float, odds: float) -> Found | None:
        """One class is many times as common as each of the others, training has learned all by heart, and validation falls far
        behind: of the rare ones too few were seen to know them again."""
        gap = view.right_now - view.valid_accuracy
        if not (share > 0.4 and odds > UNEVEN) or not view.settled or not gap > BEHIND or view.labels_are_rows:
            return None
        text = (
            f"{number(100 * share)} % of the training labels are the same, {number(odds)} times as many as of each other, and "
            f"{number(100 * view.valid_accuracy)} % of the answers are right in validation, where training has "
            f"{number(100 * view.right_now)} %: the network has seen too little of the rare classes."
        )
        remedy = "Collect or draw more of the rare classes, or weight them in the loss (weight=1 / share); look at recall by class."
        numbers = [evidence("class_odds", odds), evidence("valid_accuracy", view.valid_accuracy)]
        return Found(text, remedy, numbers, severity="likely", since=view.history.began)

    @staticmethod
    def _is_common_elsewhere(view: View, share: float) -> Found | None:
        """Always giving the frequencies of the training would cost validation no more than training, if it had the same. At no
        look did it come near that, though training did: validation has more of the rare answer."""
        beside = view.valid_best / view.chance
        if not share > limit("label_top_share") or not view.level < 1.3 or not 1.5 < beside < BEYOND or view.t < 80:
            return None
        text = (
            f"{number(100 * share)} % of the training targets are the same. A guess by their frequencies costs "
            f"{number(view.chance)}, and validation has never cost less than {number(beside)} times as much: the other answer is "
            "more common there, and the network does not expect it."
        )
        numbers = [evidence("label_top_share", share), evidence("valid_loss", view.valid_best)]
        return Found(text, BINARY_REMEDY, numbers, severity="likely", since=view.history.began)

    def test(self, view: View) -> Found | None:
        share, classes = mean(view.every("label_top_share", 12)), view.last("signal/classes")
        odds = share * (classes - 1) / max(1e-9, 1 - share)  # of the commonest class against one of the others
        right = mean(view.every("accuracy", 12))
        rest = (right - share) / max(1e-9, 1 - share)  # of the others' samples, if all of the commonest are right
        guesses = view.typical("guess_top_share")
        if self._take_turns(view):
            return None
        if view.facts.loss in BINARY_LOSSES:
            return self._is_common_elsewhere(view, share) or self._is_never(view, share)
        if (rare := self._is_unlearned(view, share, odds) or self._falls_behind(view, share, odds)) is not None:
            return rare
        always = share > limit("label_top_share") and guesses > 0.99
        lost = share > 0.5 and odds > limit("class_odds") and rest < 0.3 and view.typical("label_count") == view.batch
        if not (always or lost) or not view.batch >= 16:
            return None
        text = (
            f"{number(100 * share)} % of the labels are the same, and the network gives that one to "
            f"{number(100 * guesses)} % of the samples: it has not learned the other classes."
        )
        remedy = (
            "Weight the classes in the loss (weight=1 / share), or draw batches that are balanced; look at "
            "recall, not accuracy."
        )
        # Every network finds the commonest class first. Of two classes one is often rare by nature.
        # One label for all: nothing else is asked, or the right answer always stands first (contrastive losses).
        harmful = lost and classes > 2 and view.t >= 80 and (share < 1 or view.level < SURE)
        numbers = [evidence("label_top_share", share), evidence("class_odds", odds)]
        return Found(text, remedy, numbers, severity="likely" if harmful else "advice", since=view.history.began)

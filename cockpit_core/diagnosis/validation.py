"""Whether the loss of validation follows that of the training."""

from __future__ import annotations

import math

from cockpit_core.diagnosis.facts import BINARY_LOSSES
from cockpit_core.diagnosis.logged import Looks
from cockpit_core.diagnosis.reading import nan, ratio
from cockpit_core.diagnosis.tensors import Tensors
from cockpit_core.foundation.kept import kept

FAIR = 0.75
SURE = 3  # standard errors


class Validation(Tensors):
    """Features of logged validation losses. Their scale is the user's own (a sum, a mean, another weight of terms): only
    how they change is looked at."""

    @kept
    def _looks(self) -> Looks | None:
        looks = self.history.logged.looks("loss")
        usable = looks is not None and looks.count >= 3 and looks.first is not None and looks.first.value > 0
        return looks if usable else None

    @kept
    def valid_now(self) -> float:
        """The lower of the last two: one bad value is no rise."""
        return min(look.value for look in list(self._looks.last)[-2:]) if self._looks else nan

    @kept
    def valid_best(self) -> float:
        """The lowest value at any look."""
        return self._looks.lowest.value if self._looks and self._looks.lowest else nan

    @kept
    def valid_left(self) -> float:
        """The validation loss over its first value."""
        first = self._looks.first if self._looks else None
        return ratio(self.valid_now, first.value) if first else nan

    @kept
    def train_left(self) -> float:
        """The training loss over what it was at the first look at validation."""
        first = self._looks.first if self._looks else None
        return ratio(self.loss, first.train) if first and first.train > 0 else nan

    @kept
    def train_sure(self) -> bool:
        """The training loss has fallen since the first look by more than batches differ from one another."""
        first = self._looks.first if self._looks else None
        if first is None:
            return False
        # Individual losses may be known of early steps only, when they were larger; half of a loss is no accident.
        return first.train - self.loss > 3 * self.spread or (self.train_left < 0.5 and self.recent == self.recent)

    @kept
    def never_better(self) -> bool:
        """No look at validation was better than the first, though the training loss has fallen for sure: what is learned is
        known by heart."""
        looks = self._looks
        if looks is None or looks.count < 4 or looks.first is None or looks.lowest is None:
            return False
        best = looks.lowest.value > 0.99 * looks.first.value and self.valid_left > 1.01
        return best and self.train_sure and self.train_left < 0.97 and not self.accuracy_gained > 0.05

    @kept
    def gained_nowhere(self) -> bool:
        """A tenth of the training loss has gone since the first look, and nothing of that of validation, at any look."""
        looks = self._looks
        if looks is None or looks.count < 4 or looks.first is None or looks.lowest is None:
            return False
        none = looks.lowest.value > 0.97 * looks.first.value and self.valid_left > 0.98
        falls = self.train_sure or self.trend < -3
        return none and falls and self.train_left < 0.9 and not self.accuracy_gained > 0.05

    @kept
    def gains_elsewhere(self) -> bool:
        """A tenth of the first validation loss has gone, by which training had come down to a guess: something was learned that
        holds there."""
        first = self._looks.first if self._looks else None
        return (
            first is not None and self.valid_left < 0.9 and first.train * self.term < 1.15 * self.chance * self.summed
        )

    @kept
    def valid_is_poor(self) -> bool:
        """Validation is as bad as before the training, or most of what was learned by the first look is not seen there. Where
        a network was good by then, there is nothing left to follow."""
        first = self._looks.first if self._looks else None
        early = first is not None and not first.train < 0.5 * self.loss0
        return early or not self.valid_now < 0.8 * self.loss0

    @kept
    def by_heart(self) -> bool:
        """Next to nothing is left of the training loss, and much of that of validation, where it seems to be of the same
        scale."""
        if not self._looks or not self.loss0 > 0 or not self.loss > 0:
            return False
        nothing_left = 0.3 * self.loss0 < self.valid_now < 10 * self.loss0 and self.loss < 0.03 * self.valid_now
        # In the end validation is worse than a guess.
        guessed = self.finished and 1.2 * self.chance < self.valid_now < 5 * self.chance and self.level < 0.6
        return nothing_left or (guessed and not self.facts.is_value)

    @kept
    def known_by_heart(self) -> bool:
        """The run has settled: next to nothing is left of the training loss, nearly all its answers are right, and in validation
        a fifth more of them are wrong."""
        gap = self.right_lately - self.valid_accuracy
        return self.by_heart and self.settled and self.right_lately > 0.9 and gap > 0.2 and not self.labels_are_rows

    @kept
    def other_labels(self) -> bool:
        """Right in training, and in validation far less often than a guess would be: labels there mean something else."""
        looks, usual = self.history.logged.looks("accuracy"), self.top_share
        if looks is None or looks.count < 2 or not self.right > 2 * usual or self.labels_are_rows:
            return False
        return max(look.value for look in looks.last) < 0.5 * usual

    @kept
    def valid_rise(self) -> float:
        """The validation loss over its lowest value, and ``train_since``: the training loss over what it was then."""
        lowest = self._looks.lowest if self._looks else None
        return ratio(self.valid_now, lowest.value) if lowest and lowest.value > 0 else nan

    @kept
    def train_since(self) -> float:
        lowest = self._looks.lowest if self._looks else None
        return ratio(self.loss, lowest.train) if lowest and lowest.train > 0 else nan

    @kept
    def best_look(self) -> int:
        lowest = self._looks.lowest if self._looks else None
        return lowest.step if lowest else -1

    @kept
    def accuracy_gained(self) -> float:
        """Accuracy of validation, now less the first; NaN where none is logged."""
        looks = self.history.logged.looks("accuracy")
        return max(look.value for look in looks.last) - looks.first.value if looks and looks.first else nan

    @kept
    def valid_accuracy(self) -> float:
        """The best of the last looks; NaN where none is logged, or where it is no share."""
        looks = self.history.logged.looks("accuracy")
        best = max(look.value for look in looks.last) if looks and looks.last else nan
        return best if 0 <= best <= 1 else nan

    @kept
    def does_fairly(self) -> bool:
        """Three quarters of what guessing gets wrong in validation are right, or nearly all: what the training loss has left may
        be noise that was put in (dropout, augmentation)."""
        return self.does_well or self.valid_share > FAIR

    @kept
    def _looks_at_answers(self) -> bool:
        """There are some looks at the accuracy of validation, and at that of training."""
        looks = self.history.logged.looks("accuracy")
        known = looks is not None and looks.count >= 2 and self.right_lately == self.right_lately
        return known and not self.labels_are_rows

    @kept
    def holds_nowhere(self) -> bool:
        """Training has found far more right answers than guessing would, and validation next to none of them: what is learned
        is known by heart. A network that learns too much by heart still keeps some of what holds elsewhere."""
        if self.top_share > 0.4:  # validation may have other frequencies
            return False
        if (
            self.right_now != self.right_now
            or not self._looks_at_answers
            or not self.above_guess > 5
            or not self.right_now > self.top_share + 0.04
        ):
            return False
        return self.valid_accuracy < self.top_share + max(0.04, 0.12 * (self.right_now - self.top_share))

    @kept
    def better_elsewhere(self) -> float:
        """How much more often answers are right in validation than in training, as a share: labels that are wrong by accident
        are never learned, and validation may have none. 0 where that may be an accident, NaN where it is not known."""
        if not self._looks_at_answers:
            return nan
        right, rows = self.right_lately, max(1.0, self._count(0.75 * self.t).rows)
        error = (
            0.0 if self.facts.loss in BINARY_LOSSES else math.sqrt(max(0.0, right * (1 - right)) / rows)
        )  # it has some
        sure = self.valid_accuracy - right > SURE * error
        return 1 - ratio(right, self.valid_accuracy) if sure else 0.0

    @kept
    def easier_elsewhere(self) -> float:
        """The loss of validation over that of training; NaN unless both were of one scale at the first look."""
        first = self._looks.first if self._looks else None
        same = first is not None and 0.35 < ratio(first.value, first.train) < 2
        return ratio(self.valid_now, self.loss) if same else nan

    @kept
    def not_followed(self) -> float:
        """How many times further the training loss has fallen than that of validation since the first look: 1 = alike."""
        return ratio(self.valid_left, self.train_left)

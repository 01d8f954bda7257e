"""What the answers of a classifier say: how often they are right, and where the label stands among the scores if not."""

from __future__ import annotations

import math
from typing import NamedTuple

from cockpit_core.diagnosis.chance import Chance
from cockpit_core.diagnosis.facts import BINARY_LOSSES
from cockpit_core.diagnosis.history import SIGNAL
from cockpit_core.diagnosis.limits import limit
from cockpit_core.diagnosis.reading import mean, nan, ratio
from cockpit_core.foundation.kept import kept

COLUMNS = tuple(
    tuple(SIGNAL + name for name in names)
    for names in (
        ("label_rows", "accuracy", "wrong_rank", "wrong_low"),  # of the tracked steps themselves
        ("between_rows", "between_accuracy", "between_rank", "between_low"),  # of some steps between them
    )
)
MISTAKEN = 0.15  # of the samples that are mistaken for others: how many have their label in the lower half
LEAST_CLASSES = 4  # of fewer, a label that is not first is nearly always the second


class Answered(NamedTuple):
    """``rows``: that were looked at; ``wrong``: those whose largest score is not the label's. ``rank``: where the label of a
    wrong row stands among the other scores, 0 = first, 1 = last, on average; ``low``: how many are in the lower half."""

    rows: float = 0.0
    wrong: float = 0.0
    rank: float = nan
    low: float = 0.0


class Answers(Chance):
    """Features of right and wrong answers, of the second half of the run so far."""

    @kept
    def answered(self) -> Answered:
        return self._count(0.5 * self.t)

    def _count(self, since: float) -> Answered:
        rows = wrong = rank = low = 0.0
        for seen in self.late if SIGNAL + "label_rows" in self.history.names else ():
            if seen.step < since:
                continue
            for count, accuracy, place, lower in COLUMNS:
                if count not in seen.scalars:
                    continue
                own = seen.scalars[count]
                failed = own * (1 - seen.get(accuracy))
                rows, wrong = rows + own, wrong + failed
                if place in seen.scalars:
                    rank, low = rank + failed * seen.get(place), low + failed * seen.get(lower)
        return Answered(rows, wrong, ratio(rank, wrong), low) if rows else Answered()

    @kept
    def right(self) -> float:
        """Share of right answers."""
        return 1 - ratio(self.answered.wrong, self.answered.rows)

    @kept
    def right_now(self) -> float:
        """The same of the last quarter of the run; NaN where few were looked at."""
        last = self._count(0.75 * self.t)
        return 1 - last.wrong / last.rows if last.rows >= 100 else nan

    @kept
    def right_lately(self) -> float:
        """The same, and of yes-or-no answers that of the second half of the run, or as much more as is within two standard
        errors."""
        if self.facts.loss not in BINARY_LOSSES:
            return self.right_now
        known = [a for seen in self.late if 2 * seen.step >= self.t and (a := seen.get(SIGNAL + "accuracy")) == a]
        rows, share = len(known) * self.batch, mean(known)
        return share + 2 * math.sqrt(share * (1 - share) / rows) if rows >= 80 and self.batch >= 8 else nan

    @kept
    def of_texts(self) -> bool:
        """Several answers to a sample that is made of codes: a text, of which much cannot be known. Pictures of labels are
        learned as other labels are."""
        return self.now("label_count") > self.batch and SIGNAL + "input_rms" not in self.history.names

    @kept
    def valid_share(self) -> float:
        """Of what guessing gets wrong, the share that is right in validation, at the best of the last looks; NaN where no accuracy
        is logged."""
        looks = self.history.logged.looks("accuracy")
        best = max((look.value for look in looks.last), default=nan) if looks else nan
        return ratio(best - self.top_share, 1 - self.top_share) if 0 <= best <= 1 else nan

    @kept
    def does_well(self) -> bool:
        """Nearly all answers in validation are right, and not because one label is so common: whatever was found does no harm
        that could be seen."""
        looks = self.history.logged.looks("accuracy")
        best = max((look.value for look in looks.last), default=nan) if looks else nan
        return limit("valid_right") < best <= 1 and not self.top_share > 0.8

    @kept
    def above_guess(self) -> float:
        """How many standard errors that is above always giving the commonest label."""
        usual = self.top_share
        return (self.right - usual) / math.sqrt(max(1e-9, usual * (1 - usual)) / max(1.0, self.answered.rows))

    @kept
    def flipped(self) -> float:
        """Share of labels that have nothing to do with their sample. Theirs may be anywhere among the scores, so that half
        of them are in the lower half; of samples that are mistaken for others a sixth or less are there. NaN with few
        classes."""
        if not self.last(SIGNAL + "classes") >= LEAST_CLASSES or self.labels_are_rows:
            return nan
        answers = self.answered
        return max(0.0, ratio(answers.low - MISTAKEN * answers.wrong, (0.5 - MISTAKEN) * answers.rows))

    @kept
    def flipped_error(self) -> float:
        """Its standard error: the lower half is a share of the wrong answers, whose number is an accident too."""
        rows, wrong, _, low = self.answered
        lower, failed = ratio(low, wrong), ratio(wrong, rows)
        if not rows or not wrong:
            return nan
        spread = failed * lower * (1 - lower) + (lower - MISTAKEN) ** 2 * failed * (1 - failed)
        return math.sqrt(spread / rows) / (0.5 - MISTAKEN)

"""What is left of the loss, and whether that is more than it should be: a fact beside it is then the likely reason."""

from __future__ import annotations

from cockpit_core.diagnosis.limits import limit
from cockpit_core.diagnosis.progress import PATIENT, Progress
from cockpit_core.foundation.kept import kept

GOOD = 0.88  # of what guessing gets wrong in validation: with less of it left than that, nothing is missing that would show


class Left(Progress):
    """Features of a run that has had its time."""

    @kept
    def unfinished(self) -> bool:
        """After some time more of the loss is left than a network leaves that gets along in spite of what is wrong with it.
        Beside a strong fact only: many healthy runs are no further. Texts and pictures of labels have much that nobody could
        learn."""
        if self.t < 6 * PATIENT or self.of_texts or self.does_well:
            return False
        return self.level > limit("left_over")

    @kept
    def over_samples(self) -> bool:
        """Each sample has a label of its own, so that the first dimension counts samples, and a recurrent layer reads them as the
        steps of one sequence."""
        labels = self.typical("label_count")
        rows = labels if labels > 0 else self.typical("target_rows")
        return len(self.every("batch_is_time", 2)) == 2 and rows == self.typical("samples")

    @kept
    def lingers(self) -> bool:
        """The same, and it does not fall fast now, though it has left the plateau that many healthy runs begin with."""
        before, pace = self.fall
        return self.unfinished and pace < limit("pace") and before * self.level < 0.9

    @kept
    def settled(self) -> bool:
        """The training is over, or has gone on for long and the loss hardly falls any more."""
        return self.finished or (self.t >= 250 and self.fall[1] < 0.4)

    @kept
    def wanting(self) -> bool:
        """The run has settled with a tenth of the loss of chance or more: what is wrong with the program, and is in no right
        one, is the likely reason. A fifth where targets are real, which may be noise; six tenths of texts. Answers that are nearly
        all right, here or in validation, want nothing, whatever the loss is."""
        if self.level != self.level:  # a loss that nobody knows: a fifth of what it began with
            return self.settled and self.drop < 0.8 and not self.moving_targets
        right = self.right_now if self.right_now == self.right_now else self.right
        least = limit("wanting_values" if self.facts.may_be_noise else "wanting_texts" if self.of_texts else "wanting")
        good = self.does_well or (self.valid_share > GOOD and self.level < limit("left_over"))
        return self.settled and self.level > least and not right > 0.93 and not good

    @kept
    def suffers(self) -> bool:
        """It lags, and has had the time to leave a plateau that many healthy runs begin with."""
        return self.t >= 4 * PATIENT and self.lags

    @kept
    def stays_behind(self) -> bool:
        """It suffers, has had twice that time, and does not make up for it: what a small part of a network that does not
        learn must show. Networks that begin with a plateau are behind at first without any fault."""
        return self.t >= 8 * PATIENT and self.lags and not self.improves

"""The network travels, its steps are right, and yet nothing is learned: labels and inputs have nothing in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence, number
from cockpit_core.diagnosis.limits import limit

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View


SHORT = 200  # steps: a run that was over sooner need not have come far
APART = 0.05  # correlation of an input with its own target, beyond that with others
FEW_SAMPLES = 2000  # a network that has seen no more need not have learned anything


class LabelsRandom(Diagnosis):
    name = "labels_random"
    title = "labels do not belong to the inputs"
    needs = ("NormTest", "probe/line")
    hold, after, least = 2, 100, 14
    at_end = True
    confidence = 0.5
    explains = ("not_learning", "label_noise", "overfitting")
    probe = "line"

    def suspects(self, view: View) -> bool:
        return view.t >= 15 and view.stuck

    def is_early(self, view: View) -> bool:
        """Plateaus of hundreds of steps are healthy. Labels of no use leave the loss at chance, not a little below; real
        targets may be mostly noise, so that little can be learned of them, and that slowly."""
        if view.facts.may_be_noise:
            return view.t < 500 and not (view.finished and view.t >= 200 and view.noise > 0.7)
        if view.finished and view.t < SHORT:
            # Samples that never agree, and steps that are long enough and help their own samples only.
            lost = view.noise > 0.8 and view.update_max > 0.01 and view.transfer < 0.06 and view.level > 0.975
            return not (lost and view.t >= SHORT // 2)
        at_chance = max(view.level, view.by_frequency) if view.by_frequency == view.by_frequency else view.level
        return at_chance < 0.98 or (view.t < 150 and not 0.985 < view.level < 1.05)

    def test(self, view: View) -> Found | None:
        if view.history.resumed or view.broken or view.over_samples or view.t * view.batch < FEW_SAMPLES:
            return None
        if (
            view.holds_nowhere
        ):  # labels that belong to nothing are not learned that soon: a leak, or a handful of samples
            return None if view.history.soon_right >= 2 else self._tell_by_heart(view)
        # The training loss falls, and validation gets worse, or not better in the end.
        by_heart = (view.never_better or (view.finished and view.gained_nowhere)) and view.level > 0.8
        own_only = self.helps_itself(view) or self.is_left(view) or self.are_apart(view)
        paired = view.pairing > APART if view.pairing == view.pairing else view.now("target_like_input") == 1
        if view.level != view.level or view.update > 0.05 or paired or view.gains_elsewhere:
            return None
        if not (view.stuck or by_heart or own_only or self.ends_at_noise(view)):
            return None
        if (self.is_early(view) and not by_heart and not own_only) or not self._is_fit(view):
            return None
        # Each step helps its own batch, and no other: where samples have something in common, the loss falls.
        own = view.gain_by_step * view.t > limit("own_gain") and view.bent > 0.5
        if not (view.late_noise > 0.7 or own or by_heart or own_only or self.ends_at_noise(view)):
            return None
        text = (
            f"The labels may not belong to the inputs: after {view.t} steps the loss is {number(100 * view.level)} % of "
            "that of a constant guess, though the steps are neither too long nor too short, and "
            + self._say_why(view, by_heart)
        )
        remedy = (
            "Look at twenty samples with their labels as the loop sees them; look for inputs and labels that are "
            "shuffled apart. Either that, or the inputs do not tell the label: training on 20 samples until they "
            "are known by heart decides."
        )
        numbers = [
            evidence("level", view.level),
            evidence("noise", view.late_noise),
            evidence("gain of all steps on their own batches", view.gain_by_step * view.t),
        ]
        return Found(text, remedy, numbers, severity="likely", since=view.history.began)

    @staticmethod
    def _is_fit(view: View) -> bool:
        """The network moves, and nothing else keeps it from learning: neither its steps nor its units."""
        moved = view.travelled > 0.15 or (view.edge > 0.01 and not view.creeps) or view.straight < limit("straight")
        # Steps as long as usual ones begin with, and gradients that were nothing but noise: they lead nowhere at any rate.
        moved = moved or (view.finished and view.update_max > limit("update_low") and view.noise > 0.8)
        used = view.rate_fall > 0.4 or (view.finished and view.rate_mean > limit("rate_mean"))  # schedules end at zero
        healthy_step = not view.edge > 1.2 and used and not view.clipped < 0.5 and not view.silent
        alive = not view.typical("dead") > 0.6 and not 0 < view.vanishing[0] < limit("vanishing")
        return moved and healthy_step and alive and not view.level > 1.15

    @staticmethod
    def is_left(view: View) -> bool:
        """The run is over and has learned nothing, long enough though it was, and (as ``_is_fit`` sees to) nothing that is known
        to keep a network from learning is there."""
        return view.finished and view.t >= SHORT and view.stuck

    @staticmethod
    def are_apart(view: View) -> bool:
        """Pictures are no more like their own targets than like those of others, and the loss stays behind: what is learned is
        what all targets have in common."""
        return abs(view.pairing) < APART and view.suffers and view.has_seen(8)

    @staticmethod
    def ends_at_noise(view: View) -> bool:
        """The end of a run on real targets: next to nothing was learned, the samples do not agree, and it falls no more."""
        return view.finished and view.facts.may_be_noise and view.level > 0.9 and view.noise > 0.7 and not view.improves

    @staticmethod
    def helps_itself(view: View) -> bool:
        """Late in a run that has learned next to nothing, steps gain much on their own samples, and nothing of it is seen in the
        next ones."""
        if view.above_guess > 6 and view.flipped > 0.2:
            return False  # some of them belong: label_noise
        late = (
            view.finished
            and view.t >= SHORT
            and view.t * view.batch >= 2 * FEW_SAMPLES
            and view.struggles
            and view.level > 0.85
        )
        return late and view.transfer < 0.06 and view.gain_by_step * view.t > 0.5

    @staticmethod
    def _tell_by_heart(view: View) -> Found:
        text = (
            f"The labels may not belong to the inputs: {number(100 * view.right_now)} % of the answers are right in training, "
            f"and in validation {number(100 * view.valid_accuracy)} %, where guessing would give "
            f"{number(100 * view.top_share)} %. What is learned is known by heart."
        )
        remedy = (
            "Look at twenty training samples with their labels as the loop sees them, and at validation samples as the network "
            "gets them: labels that were shuffled apart, or inputs that are made differently."
        )
        numbers = [evidence("valid_accuracy", view.valid_accuracy), evidence("accuracy", view.right_now)]
        return Found(text, remedy, numbers, severity="likely", since=view.history.began)

    @staticmethod
    def _say_why(view: View, by_heart: bool) -> str:
        if by_heart:
            return (
                f"what little is learned makes validation worse ({number(100 * view.valid_left)} % of its first loss)."
            )
        if LabelsRandom.are_apart(view):
            return "inputs are no more like their own targets than like those of other samples."
        if view.late_noise > 0.7 or LabelsRandom.ends_at_noise(view):
            noise = view.late_noise if view.late_noise > 0.7 else view.noise
            return f"the samples never agree (noise {number(noise)} times the signal)."
        if not view.gain_by_step > 0:
            return "nothing else that is known to keep a network from learning is there."
        return f"each takes {number(100 * view.gain_by_step)} % off the loss of its own batch and nothing off that of others."

"""The training loss falls, and that of validation does not: what is learned holds for the training data alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence, number
from cockpit_core.diagnosis.limits import limit

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View


BY_HEART = (
    "More data, augmentation, dropout or weight decay, a smaller network; keep the weights of the best validation. If the two "
    "should be alike, compare a sample of each as the network gets them."
)


class Overfitting(Diagnosis):
    name = "overfitting"
    title = "validation does not follow training"
    needs = ("valid_loss",)
    hold, after, least = 1, 0, 3
    confidence = 0.7
    at_validation = True

    def test(self, view: View) -> Found | None:
        if not view.train_sure and not view.by_heart:
            return None
        none = view.valid_left > limit("valid_left") and view.train_left < limit("train_left")
        none = ((none or view.never_better) and view.valid_is_poor) or view.by_heart
        rises = view.valid_rise > limit("valid_rise") and view.train_since < 0.8
        if not (none or rises) or view.broken or view.moving_targets:
            return None
        better = view.accuracy_gained > 0.02  # surer of its mistakes, and right more often: a loss can rise by that
        good = view.valid_accuracy > 0.9  # with so many right answers, a loss rises by what it is sure of
        if view.known_by_heart:
            text = (
                f"The network knows its samples by heart: {number(100 * view.right_lately)} % of the answers are right in "
                f"training, {number(100 * view.valid_accuracy)} % in validation."
            )
            return Found(text, BY_HEART, [evidence("valid_accuracy", view.valid_accuracy)])
        if none and not better and not good:
            text = (
                f"Validation does not follow training: at step {view.t} the training loss was "
                f"{number(100 * view.train_left)} % of what it was at the first validation, and the validation loss "
                f"{number(100 * view.valid_left)} %."
            )
            remedy = (
                "Compare a training and a validation sample as the network gets them (scale, columns, labels); look for a "
                "feature that only training has. If both are alike, the network learns the samples by heart: more data, "
                "augmentation, weight decay, a smaller network."
            )
            numbers = [evidence("valid_left", view.valid_left), evidence("train_left", view.train_left)]
            return Found(text, remedy, numbers)
        if not rises:
            return None
        text = (
            f"The validation loss rises: it was lowest at step {view.best_look}, and {number(100 * (view.valid_rise - 1))} % "
            f"higher at step {view.t}, while the training loss had fallen by {number(100 * (1 - view.train_since))} %."
        )
        remedy = (
            "Keep the weights of the best validation (early stopping); then more data, augmentation or weight decay."
        )
        return Found(text, remedy, [evidence("valid_rise", view.valid_rise)], severity="advice")

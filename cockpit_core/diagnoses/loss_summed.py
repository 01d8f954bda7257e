"""The loss is a sum over the batch, so that gradients and steps are as many times too long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View


class LossSummed(Diagnosis):
    name = "loss_summed"
    title = "the loss is summed, not averaged"
    needs = ("static_sum", "loss_addends")
    hold, after, least = 1, 0, 2
    confidence = 0.9
    explains = (
        "learning_rate_too_high",
        "dead_units",
        "graph_detached",
        "data_not_shuffled",
        "not_learning",
        "labels_random",
        "init_too_large",
        "not_finite",
        "saturated_units",
        "clipping_too_hard",
        "vanishing_gradients",
        "momentum_too_high",
        "targets_not_scaled",
    )

    def test(self, view: View) -> Found | None:
        if not view.adds_samples or view.batch < 4:
            return None
        falls = len(view.finite) > 0 and view.finite[-1] < 0.5 * abs(view.very_first)  # a rate that was made for it
        harmed = (
            view.broken
            or view.edge > 1.5
            or view.update > 0.3
            or (view.update > 0.05 and view.t >= 4 and not falls)
            or view.update_max > 0.5
            or (
                view.alpha > 0.9 and view.update > 5e-3 and len(view.values("Alpha", 3)) == 3
            )  # of short steps it says little
            or view.spike > 3
        )
        hidden = view.facts.adaptive  # adaptive steps have the same length whatever the factor
        text = (
            f"The loss is summed over the batch, not averaged: gradients are {view.batch} times those of the "
            "mean, and so is the learning rate in effect."
        )
        remedy = f'Use reduction="mean", or divide the learning rate by {view.batch}.'
        return Found(
            text,
            remedy,
            [evidence("update", view.update), evidence("edge", view.edge)],
            severity="likely" if harmed and not hidden else "advice",
        )

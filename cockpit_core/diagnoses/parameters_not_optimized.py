"""Some parameters get a gradient and never move, because no optimizer holds them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence, listed, number, what_is_left
from cockpit_core.diagnosis.limits import limit

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View


LATE = 120  # steps
FROZEN, REPLACED = 0.51, 0.3  # of all matrices


class ParametersNotOptimized(Diagnosis):
    name = "parameters_not_optimized"
    title = "some parameters are not optimised"
    severity = "broken"
    needs = ("UpdateSize", "static_unoptimized")
    hold, after, least = 1, 0, 2
    confidence = 0.97
    explains = ("gradients_not_zeroed", "not_learning", "labels_random", "label_noise", "learning_rate_too_low")

    @staticmethod
    def _frozen(view: View) -> Found | None:
        """Frozen before anything was trained into them. On purpose, it does no harm that one could see."""
        if not view.static("static_frozen") > 0 or view.history.resumed or view.t < LATE:
            return None
        random = view.facts.names("frozen fresh weights")
        # A first layer of random features is enough for what follows, mostly.
        many = len(random) >= FROZEN * (len(random) + view.static("static_matrices"))
        if not random or not many or not (view.lags or view.lingers):
            return None
        text = (
            f"{listed(random)} {'is' if len(random) == 1 else 'are'} frozen (requires_grad=False) with the random weights that "
            f"torch gave: nothing was ever trained into them, and {what_is_left(view.level, view.drop)}."
        )
        remedy = "Load the trained weights before freezing them, or let them learn: requires_grad_(True), and in the optimizer."
        return Found(text, remedy, [evidence("level", view.level)], random, severity="likely")

    @staticmethod
    def _stray(view: View) -> Found | None:
        """Layers that the output depends on and ``model.parameters()`` has not, so that no optimizer was given them. One may
        hide a trained network like that on purpose: then training goes well."""
        known = view.every("stray", 4)
        if len(known) < 3 or not view.now("stray") > 0 or view.history.resumed:
            return None
        count = known[-1]
        share = count / (count + sum(view.facts.sizes))
        harmful = view.suffers or view.lingers or view.wanting or (share > limit("lost_weights") and view.lags)
        text = (
            f"The output depends on {number(count)} numbers of parameters that the model does not have, and they never change: "
            f"{number(100 * share)} % of all. Layers in a plain list or dict are not among model.parameters()."
        )
        remedy = "Keep layers in nn.ModuleList or nn.ModuleDict (parameters in nn.ParameterList), before the optimizer is made."
        numbers = [
            evidence("stray", count, "numbers of parameters that the model does not have, and that never change")
        ]
        return Found(text, remedy, numbers, severity="broken" if harmful else "advice", since=view.history.began)

    def test(self, view: View) -> Found | None:
        if (frozen := self._frozen(view) or self._stray(view)) is not None:
            return frozen
        if not view.static("static_unoptimized") > 0 or not view.update > 0:
            return None
        missing = view.facts.names("not optimized")
        still = [name for name in view.still if not missing or name in missing]
        if not still:
            return None
        foreign = view.static("static_foreign") > 0
        why = (
            "the optimizer holds other tensors in their place: layers were replaced after it was made"
            if foreign
            else "they are in no optimizer"
        )
        gets, moves = ("gets", "moves") if len(still) == 1 else ("get", "move")
        text = f"{listed(still)} {gets} a gradient and never {moves}: {why}."
        remedy = (
            "Build the optimizer from model.parameters(), after the model is complete. If they shall stay as they are, "
            "freeze them: requires_grad_(False)."
        )
        lost = view.gradient_share(still)
        numbers = [evidence("UpdateSize", 0.0, "length of the step of these tensors", layer=still[0])]
        numbers.append(evidence("lost gradient", lost, "share of the squared gradient that is not followed"))
        # Layers that were trained before may stay as they are: then training goes well. So it does around a small layer
        # of random weights, mostly.
        whole = view.weight_share(still) > limit("lost_weights")
        fresh = foreign or view.are_fresh(still)
        few = view.weight_share(still) < limit("few_weights") and not foreign
        behind = view.stays_behind if few else view.suffers
        harmful = (fresh and (whole or view.lingers or (view.wanting and not few))) or (
            behind if fresh else behind and view.struggles
        )
        # Nobody leaves most layers as they were made, nor some in the place of which the optimizer holds others.
        layers = view.matrix_share(still)
        harmful = harmful or (
            fresh and view.t >= LATE and layers > (REPLACED if foreign else FROZEN) and not view.does_well
        )
        return Found(text, remedy, numbers, still, severity="broken" if harmful else "advice")

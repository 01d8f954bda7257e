"""Units that answer to no sample get no gradient, and do not come back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence, listed, number
from cockpit_core.diagnosis.limits import limit

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View


WAIT = 20  # steps


class DeadUnits(Diagnosis):
    name = "dead_units"
    title = "a layer is dead"
    needs = ("dead",)
    hold, after, least = 1, 0, 1
    confidence = 0.95
    explains = (
        "graph_detached",
        "not_learning",
        "labels_random",
        "vanishing_gradients",
        "learning_rate_too_low",
        "label_noise",
    )

    @staticmethod
    def _is_over(view: View) -> Found | None:
        """Nothing gets a gradient any more, though the loss has not gone."""
        norms = view.values("GradNorm", 5)
        if len(norms) < 5 or max(norms) > 0 or view.level < 0.05 or not view.t >= 20 or view.broken:
            return None
        text = (
            f"The gradient of every parameter is exactly zero, at each of the last {len(norms)} tracked steps: no unit between the "
            "loss and the parameters answers any more."
        )
        remedy = "Look at the last activation (a ReLU behind the output, a clamp) and at the biases; then lower the learning rate."
        return Found(text, remedy, [evidence("GradNorm", 0.0)], severity="broken")

    @staticmethod
    def _is_silent(view: View) -> Found | None:
        """Where no units are looked at (functions between layers of the user's own): most weights have had a gradient of exactly
        zero at every record, which neither small signals nor a cut graph leave."""
        names = view.silent
        if view.typical("dead") == view.typical("dead") or view.t < WAIT or not (view.stuck or view.struggles):
            return None
        if not view.matrix_share(names) >= 0.3 or view.static("static_constant") > 0 or view.history.resumed:
            return None
        text = (
            f"The gradient of {listed(names)} is exactly zero at every tracked step, while others have one: no unit behind them "
            "answers to any sample."
        )
        remedy = "Look at the biases and the scale of the initialisation (biases of 0, weights of Kaiming), and at the activations."
        numbers = [evidence("tensors whose gradient is zero", len(names))]
        return Found(text, remedy, numbers, names, since=view.history.began)

    def test(self, view: View) -> Found | None:
        if (over := self._is_over(view) or self._is_silent(view)) is not None:
            return over
        dead, first = view.dead, view.first("dead")
        now = dead >= limit("dead")
        from_start = first >= limit("dead0") and dead >= 0.9 * limit("dead0")
        if not now and not (from_start and (view.lingers or not view.learns)):
            return None
        harmful = bool(view.silent) or view.stuck or view.drop < 0.1 or (from_start and view.lingers)
        # Signals get past a dead layer (skip connections): what is left may do.
        passed = from_start and view.first("output_spread") > limit("output_spread")
        waits = passed and not (view.lingers or view.struggles or (view.stuck and view.t >= WAIT))
        if not (harmful or (passed and view.struggles)) or (view.learns and view.drop > 0.8):
            return None
        if from_start and not view.silent and 0 < view.vanishing[0] < limit("vanishing"):
            return None  # all get a gradient, however small: nothing is dead, signals and gradients vanish
        where = view.name_activation("dead_where")
        units = "units in front of" if f"{where}.weight" in view.facts.layers else "units of"
        when = "from the first step on" if first >= limit("dead0") else "by now"
        text = (
            f"{number(100 * dead)} % of the {units} module {where} are dead, {when}: they give the same for every "
            "sample, and learn nothing."
        )
        remedy = (
            "Look at the biases and the scale of the initialisation (biases of 0, weights of Kaiming)."
            if first >= limit("dead0")
            else ("Lower the learning rate and start again; LeakyReLU or GELU cannot die.")
        )
        severity = "broken" if dead >= 0.999 and view.batch >= 8 else "likely"
        alike = view.static("static_constant") >= max(2, 0.7 * view.static("static_matrices"))
        if (
            waits or (not now and not (view.suffers or view.lingers)) or (alike and view.t < 60)
        ):  # those that are left may do
            severity = "advice"
        return Found(
            text,
            remedy,
            [evidence("dead", dead, layer=where), evidence("dead, first step", first, limit="dead0", layer=where)],
            [where],
            severity=severity,
        )

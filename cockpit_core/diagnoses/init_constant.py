"""Weights that are all equal give units that are all equal, for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence, listed, number
from cockpit_core.diagnosis.limits import limit

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View

EARLY, PATIENT, LATE = 20, 60, 120  # steps without anything learned; without much
MANY = 4  # matrices


class InitConstant(Diagnosis):
    name = "init_constant"
    title = "weights are initialised to a constant"
    severity = "broken"
    needs = ("static_constant",)
    hold, after, least, sticky = 1, 0, 1, True
    confidence = 0.97
    explains = (
        "dead_units",
        "graph_detached",
        "not_learning",
        "vanishing_gradients",
        "labels_random",
        "init_too_small",
        "learning_rate_too_low",
        "label_noise",
    )

    @staticmethod
    def _tell_dead(names: list[str]) -> Found:
        """Products of two that are zero: neither gets a gradient, whatever the rest of the network learns."""
        starts, gets = ("starts", "gets") if len(names) == 1 else ("start", "get")
        text = f"{listed(names)} {starts} with all elements equal and never {gets} a gradient."
        remedy = (
            "Initialise weights at random, as torch does by default; of two factors at most one may begin with zeros."
        )
        return Found(text, remedy, [evidence("tensors without a gradient", len(names))], names)

    @staticmethod
    def _is_dead(view: View) -> bool:
        """Most weights have had a gradient of zeros at every tracked step so far, while the others moved."""
        moved = view.values("UpdateSize", 2)
        return view.weight_share(view.silent) > limit("lost_weights") and len(moved) == 2 and min(moved) > 0

    def test(self, view: View) -> Found | None:
        constant, all_of_them = view.static("static_constant"), view.static("static_matrices")
        names = view.facts.names("constant weights")
        if not constant > 0 or view.history.resumed:
            return None
        # Where most of the network has no gradient although the rest moves, nothing will give it one.
        if (dead := [name for name in names if name in view.silent]) and (view.t >= PATIENT or self._is_dead(view)):
            return self._tell_dead(dead)
        behind = view.t >= LATE and (
            view.lags or view.lingers or (view.wanting and not view.of_texts)
        )  # biases alone learn something, and not much
        every = (
            constant >= all_of_them >= MANY and not view.does_well
        )  # nobody means that; what is learned is the rest's
        if not constant >= max(2, 0.7 * all_of_them) or (view.learns and not behind and not (every and view.t >= LATE)):
            return None
        text = (
            f"{number(constant)} of {number(all_of_them)} weight matrices start with all elements equal "
            f"({listed(names)}): their units are all alike and stay so."
        )
        remedy = "Initialise weights at random, as torch does by default; only biases (and a last layer) may be zero."
        # Dropout, or inputs that reach single units, make them different after all: then something is learned soon.
        stays = view.t >= PATIENT or (view.t >= EARLY and abs(view.drop) < 0.01)
        return Found(
            text, remedy, [evidence("constant weights", constant)], names, severity="broken" if stays else "advice"
        )

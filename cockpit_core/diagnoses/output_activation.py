"""The network ends in an activation that keeps it from what the loss asks for: scores that cannot be negative or large, or
values that cannot reach the targets."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence, number
from cockpit_core.diagnosis.facts import BINARY_LOSSES
from cockpit_core.diagnosis.limits import limit

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View

AFTER = 20  # steps
SEEN = 12
EDGE, TIMES = 0.97, 3
ANYWHERE, NOWHERE = 0.2, 1e-3
"""Outputs of a sigmoid or tanh come this close to their end again and again, and never beyond it."""
WALL, FLAT = 5, 1e-3
"""Records at which outputs end at the same place, and what counts as the same, as a share of their range."""


ENDS = {(0.0, 1.0): "sigmoid", (-1.0, 1.0): "tanh", (0.0, 9.0): "ReLU"}  # 9: none


def find_bounds(lows: list[float], highs: list[float]) -> tuple[float, float, str] | None:
    """Between what the outputs lie at every one of the last records, and the activation that does this."""
    low, high = min(lows), max(highs)
    if low == high == 0:  # nothing but zeros, at every record
        return 0.0, float("inf"), "ReLU"
    if low == max(lows) == 0 and min(highs) > 0:  # a smallest output of exactly zero, each time
        return 0.0, float("inf"), "ReLU"
    at_one, at_zero = (sum(value > EDGE for value in highs), sum(value < 1 - EDGE for value in lows))
    if not (high > ANYWHERE or low < NOWHERE):  # a network that is dead gives any number, and always the same
        at_zero = 0
    if low > 0 and high < 1 and max(at_one, at_zero) >= TIMES:
        return 0.0, 1.0, "sigmoid"
    if low >= -1 and high <= 1 and min(at_one, sum(value < -EDGE for value in lows)) >= TIMES:
        return -1.0, 1.0, "tanh"
    return None


def find_walls(view: View) -> tuple[float, float, str] | None:
    """The ends that outputs come to, over and over, in batches that are not the same, while the weights move: only an activation
    has such ends. Infinite on a side without one."""
    known = [(o.step, low, o.get("signal/output_max")) for o in view.late if (low := o.get("signal/output_min")) == low]
    known = known[-SEEN:]
    if len(known) < WALL or view.history.batches < WALL:
        return None
    bottom, top = min(low for _, low, _ in known), max(high for _, _, high in known)
    near = FLAT * (top - bottom)
    low = bottom if is_wall([step for step, value, _ in known if value - bottom <= near], known[-1][0]) else -math.inf
    high = top if is_wall([step for step, _, value in known if top - value <= near], known[-1][0]) else math.inf
    if top == bottom or (low == -math.inf and high == math.inf):
        return None
    return low, high, ENDS.get((round(max(low, -9.0), 3), round(min(high, 9.0), 3)), "bounded function")


def is_wall(steps: list[int], last: int) -> bool:
    """Was the end reached at so many records, from early on to the last?"""
    return len(steps) >= WALL and 2 * steps[0] <= last and steps[-1] == last


class OutputActivation(Diagnosis):
    name = "output_activation"
    title = "an activation behind the last layer"
    needs = ("output_min",)
    hold, after, least = 1, 0, 2
    confidence = 0.8
    explains = (
        "not_learning",
        "label_noise",
        "labels_random",
        "dead_units",
        "saturated_units",
        "vanishing_gradients",
        "learning_rate_too_low",
        "class_imbalance",
        "init_too_small",
        "init_too_large",
    )

    @staticmethod
    def _of_one(view: View) -> Found | None:
        """A softmax of a single number, in the graph of the loss: a fact, and no signal gets past it."""
        if not view.now("softmax_of_one") > 0 or view.last("GradNorm") != 0:
            return None
        text = "The network ends in a softmax over a single output, which is 1 whatever the output is: no gradient gets past it."
        remedy = "Use a sigmoid for one output, or two outputs; or remove the softmax, if the loss takes it."
        return Found(text, remedy, [evidence("GradNorm", view.last("GradNorm"))], severity="broken", at_once=True)

    @classmethod
    def _of_rectified(cls, view: View) -> Found | None:
        """Scores that went through a ReLU, in the graph of the loss, whatever the loss gets in the end."""
        if not view.now("rectified") > 0 or view.t < AFTER or not view.has_seen(5):
            return None
        binary = view.facts.loss in BINARY_LOSSES
        text = (
            "The scores go through a ReLU before they become probabilities: none is ever negative, so that "
            + ("no answer is below 0.5" if binary else "no class is ever ruled out")
            + "; those that are zero get no gradient."
        )
        remedy = "Remove the ReLU behind the last layer; a softmax or sigmoid takes any number."
        severity = "likely" if cls.harms(view, math.inf) else "advice"
        return Found(
            text, remedy, [evidence("rectified", 1.0, "a ReLU before the softmax or sigmoid")], severity=severity
        )

    @staticmethod
    def _of_bounded(view: View) -> Found | None:
        """The same of a sigmoid or tanh before a softmax: no class can become much more likely than the others."""
        reach = (
            1.0 if view.now("sigmoid_scores") > 0 else 2.0 if view.now("tanh_scores") > 0 else 0.0
        )  # between two scores
        classes = view.last("signal/classes")
        if (
            not reach > 0
            or not classes > 1
            or view.t < AFTER
            or not view.has_seen(5)
            or view.facts.loss != "CrossEntropyLoss"
        ):
            return None
        least = math.log1p((classes - 1) * math.exp(-reach))
        floor = least / math.log(classes)
        activation = "sigmoid" if reach == 1 else "tanh"
        text = (
            f"The scores go through a {activation} before the softmax: however sure the network is, the loss cannot fall below "
            f"{number(least)}, {number(100 * floor)} % of that of a guess."
        )
        remedy = f"Remove the {activation} behind the last layer; the softmax takes any number."
        held = view.level > 0.25 and floor > 0.15 and view.t >= 40 and not view.does_well
        harmful = held and not view.typical("accuracy") > 0.9 and (view.lags or view.settled)
        return Found(text, remedy, [evidence("floor of the loss", floor)], severity="likely" if harmful else "advice")

    def test(self, view: View) -> Found | None:
        if (fact := self._of_one(view) or self._of_rectified(view) or self._of_bounded(view)) is not None:
            return fact
        if view.t < AFTER or not view.has_seen(5) or view.broken:
            return None
        lows, highs = view.every("output_min", SEEN), view.every("output_max", SEEN)
        bounds = find_bounds(lows, highs) if len(lows) >= 4 and len(highs) >= 4 else None
        if bounds is None and view.real_targets:
            bounds = find_walls(view)
        if bounds is None:
            return None
        low, high, activation = bounds
        numbers = [evidence("output_min", min(lows)), evidence("output_max", max(highs))]
        remedy = f"Remove the {activation} behind the last layer; the loss takes any number."
        sums = (view.typical("row_sum_error"), view.typical("column_sum_error"))
        if view.facts.loss == "CrossEntropyLoss" and not any(error < limit("row_sum_error") for error in sums):
            text = (
                f"The scores that CrossEntropyLoss gets end in a {activation}: they are never below {number(low)}"
                + (f" nor above {number(high)}" if high == 1 else "")
                + ("; classes whose score is zero get no gradient." if high > 1 else ", so that the loss has a floor.")
            )
        elif view.real_targets and (beyond := self.share_out(view, low, high)) > 0.25:
            text = (
                f"The network ends in a {activation}, and cannot reach the targets: they go from "
                f"{number(min(view.every('target_min', SEEN)))} to {number(max(view.every('target_max', SEEN)))}."
            )
            numbers.append(evidence("targets_out_of_reach", beyond, "farthest target beyond reach, in deviations"))
        elif min(lows) == max(highs) == 0 and view.t >= 40 and view.is_high:
            text = "The network gives exactly zero for every sample: an activation behind the last layer lets nothing through."
        else:
            return None
        return Found(text, remedy, numbers, severity="likely" if self.harms(view, high) else "advice")

    @staticmethod
    def share_out(view: View, low: float, high: float) -> float:
        """How far targets lie beyond what the outputs can be, over the deviation of the targets."""
        lowest, highest = view.every("target_min", SEEN), view.every("target_max", SEEN)
        deviation = view.typical("target_std")
        if not lowest or not highest or not deviation > 0:
            return 0.0
        return max(low - min(lowest), max(highest) - high, 0.0) / deviation

    @staticmethod
    def harms(view: View, high: float) -> bool:
        """What cannot be reached is missing from the loss. Scores between bounds can be right all the same, and only learn
        more slowly; those of a ReLU that have become zero do not learn at all."""
        if view.facts.is_value or max(view.every("output_max", SEEN)) == 0:
            return view.level > 0.1
        if view.real_targets:  # a loss of the user's own
            return view.level > 0.1 or view.struggles or view.wanting
        wrong = view.level > 0.25 and not view.typical("accuracy") > 0.9
        return wrong and view.t >= 40 and (high > 1 or not view.improves)

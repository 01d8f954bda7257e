"""The backward pass ends before it reaches the first layers, though they were used and their units answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence, listed, number, what_is_left
from cockpit_core.diagnosis.limits import limit

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View


class GraphDetached(Diagnosis):
    name = "graph_detached"
    title = "the graph is cut"
    severity = "broken"
    needs = ("ungraded_prefix", "GradNormClipped")
    hold, after, least = 1, 0, 2
    confidence = 0.9
    explains = ("not_learning", "labels_random", "label_noise", "vanishing_gradients", "learning_rate_too_low")

    @staticmethod
    def _cut_off(view: View) -> Found | None:
        """There is a loss, and at no record a gradient."""
        left = view.values("GradNormClipped", 8)
        if (
            "GradNorm" not in view.facts.quantities
            or "GradNorm" in view.history.names
            or len(left) < 3
            or max(left) > 0
        ):
            return None
        text = "No gradient reaches any parameter: the graph is cut between the network and the loss."
        remedy = (
            "Look between them for .detach(), .data, .item(), torch.tensor(...), numpy(), torch.no_grad() or an argmax."
        )
        return Found(text, remedy, [evidence("GradNormClipped", left[-1])], since=view.history.began)

    @staticmethod
    def _cut_inside(view: View) -> Found | None:
        """Most fresh weights have no gradient, though the first ones do: tied weights get theirs at the other end."""
        if view.t < 80 or not (view.lags or view.lingers) or view.static("static_frozen") > 0:
            return None
        names = view.unreached
        if not names or not view.are_fresh(names):
            return None
        if not view.weight_share(names) > limit("cut_weights"):
            return None
        text = (
            f"No gradient reaches {listed(names)}: {number(100 * view.weight_share(names))} % of all weights have none, and "
            f"{what_is_left(view.level, view.drop)}."
        )
        remedy = "Look behind them for .detach(), .data, .item(), numpy() or torch.no_grad(); or the loss does not look at them."
        return Found(
            text, remedy, [evidence("tensors without a gradient", len(names))], names, since=view.history.began
        )

    @staticmethod
    def _cut_between(view: View) -> Found | None:
        """Layers that were used at every record and have never had a gradient, though layers before and behind them have one.
        What they give may not be meant for the loss: told as harm when the run is over and much is left."""
        counts, names = view.every("ungraded_inside", 4), view.unreached
        if len(counts) < 3 or not view.now("ungraded_inside") > 0 or not names or view.static("static_frozen") > 0:
            return None
        if not view.are_fresh(names) or not view.matrix_share(names) > 0:
            return None
        text = (
            f"No gradient reaches {listed(names)}, though layers before and behind have one: the graph is cut behind them, or the "
            "loss does not look at what they give."
        )
        remedy = "Look behind them for .detach(), .data, .item(), numpy() or torch.no_grad()."
        harmful = view.wanting or view.suffers
        numbers = [evidence("tensors without a gradient", len(names))]
        severity = "likely" if harmful else "advice"
        return Found(text, remedy, numbers, names, severity=severity, since=view.history.began)

    def test(self, view: View) -> Found | None:
        if (cut_off := self._cut_off(view) or self._cut_inside(view)) is not None:
            return cut_off
        if (between := self._cut_between(view)) is not None:
            return between
        cut = view.every("ungraded_prefix", 2)
        none = view.every("ungraded_none", 2)
        if (
            len(cut) < (1 if view.sparse or view.unreached else 2)
            or min(cut) < 1
            or not none
            or min(none) < 1
            or view.typical("dead") >= limit("dead")
        ):
            return None
        first = view.last("signal/ungraded_where")
        place = int(first) if first == first else -1
        where = view.facts.layers[place] if 0 <= place < len(view.facts.layers) else "there"
        behind = view.facts.layers[: place + 1] if place >= 0 else []
        text = (
            f"No gradient reaches the first {number(cut[-1])} tensors, up to {where}: they are used, but the "
            "graph is cut behind them."
        )
        # A trained backbone may run under no_grad: then training goes well. So it does behind a small layer of random
        # weights, mostly.
        whole = view.weight_share(behind) > limit("cut_weights") or view.matrix_share(behind) >= 0.5
        fresh = view.are_fresh(behind)
        few = view.weight_share(behind) < limit("few_weights")
        behind_others = view.stays_behind if few else view.t >= 80 and (view.lags if fresh else view.struggles)
        harmful = (fresh and (whole or view.lingers or view.wanting)) or behind_others
        remedy = (
            f"Look behind {where} for .detach(), .data, .item(), numpy(), torch.no_grad() or an argmax; if the "
            "layers shall stay as they are, freeze them with requires_grad_(False)."
        )
        return Found(text, remedy, [evidence("tensors without a gradient", cut[-1])], behind,
                     severity="broken" if harmful else "advice")  # fmt: skip

"""Products of queries and keys are so large that the softmax of attention picks a single key."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence, number
from cockpit_core.diagnosis.limits import limit

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View


class AttentionTooSharp(Diagnosis):
    name = "attention_too_sharp"
    title = "attention is too sharp from the start"
    needs = ("AttentionEntropy", "attention_share")
    hold, after, least = 2, 0, 3
    confidence = 0.7
    explains = ("vanishing_gradients", "not_learning", "labels_random", "label_noise")
    rivals = {  # noqa: RUF012
        "learning_rate_too_high": "the first step. If attention is as sharp before anything was learned, it is not the rate.",
    }

    def test(self, view: View) -> Found | None:
        logit, entropy = (
            view.history.first.get(f"AttentionEntropy{part}", float("nan")) for part in ("/largest_logit", "")
        )
        share = view.first("attention_share")
        sharp = logit > limit("attention_logit") or entropy < limit("attention_entropy")
        if not (sharp or share < limit("attention_share")) or view.history.resumed:
            return None
        text = (
            f"Attention is too sharp from the start: the largest product of a query and a key is {number(logit)}, and each "
            f"query looks at {number(math.exp(entropy))} keys on average."
            if sharp
            else f"Attention is too sharp from the start: the entropy of its weights is {number(100 * share)} % of that of looking "
            "at all keys alike, where a fresh network looks at most of them."
        )
        remedy = (
            "Divide the products by sqrt(d) of a head, initialise smaller projections, or normalise queries and keys."
        )
        harmful = (
            view.suffers and view.struggles
        ) or view.wanting  # after 80 steps: small decoders are slow to begin with
        numbers = [evidence("attention_logit", logit), evidence("attention_entropy", entropy)] if sharp else []
        numbers += [evidence("attention_share", share)] if share == share else []
        return Found(text, remedy, numbers, severity="likely" if harmful else "advice")

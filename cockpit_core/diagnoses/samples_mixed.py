"""The answer to a sample depends on the other samples of its batch: a dimension was mistaken for another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence, number
from cockpit_core.diagnosis.history import PROBE
from cockpit_core.diagnosis.limits import limit

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View

LOOKS = 2  # that found the same are enough
EARLY = 20  # steps


class SamplesMixed(Diagnosis):
    name = "samples_mixed"
    title = "the network mixes the samples of a batch"
    severity = "advice"
    needs = ("probe/half", "training")
    hold, after, least = 1, 3, 4
    confidence = 0.8
    at_end = True
    explains = (
        "not_learning",
        "labels_random",
        "label_noise",
        "overfitting",
        "learning_rate_too_low",
        "target_in_inputs",
    )
    probe = "half"

    def suspects(self, view: View) -> bool:
        known = view.values(PROBE + "mixed", LOOKS)
        return view.t >= EARLY and view.batch >= 4 and len(known) < LOOKS and not view.level < 0.5 and not view.broken

    def test(self, view: View) -> Found | None:
        mixed = view.last(PROBE + "mixed")
        along = view.over_samples  # a recurrent layer whose steps are the samples
        # Of one and the same batch again and again the rows may belong together (the nodes of a graph).
        if not along and not (mixed > limit("mixed") and view.history.batches > 1):
            return None
        # Batches have one size, and now and then a last one another: these rows are the words of a sentence, the points of a set.
        if len(set(view.every("samples", 8))) > 2:
            return None
        if along:
            text = (
                "A recurrent layer runs along the batch: it takes the samples for the steps of one sequence, so that each "
                "answer depends on the samples before it, and not on the steps of its own."
            )
            remedy = "Make the layer with batch_first=True, or give it [steps, samples, features]."
            numbers = [evidence("batch_is_time", 1.0, "a recurrent layer whose steps are the samples")]
        else:
            text = (
                "The network mixes samples: in evaluation mode too, its answers to half of a batch change by "
                f"{number(100 * mixed)} % when the other half is exchanged."
            )
            remedy = (
                "Look for a layer that takes the batch for another dimension: batch_first=True of attention and recurrent "
                "layers, view or reshape where transpose is meant, a mean or softmax over dim=0."
            )
            numbers = [evidence("mixed", mixed)]
        remedy += " Where the rows of a batch belong together by right (a sentence, a set, a graph), nothing is wrong."
        # Of texts whose next token is asked for, later tokens come in by the other samples.
        harmful = view.suffers or view.wanting or view.last(PROBE + "looks_ahead") > limit("looks_ahead")
        return Found(
            text,
            remedy,
            [*numbers, evidence("level", view.level)],
            severity="likely" if harmful else "",
            since=view.history.began,
        )

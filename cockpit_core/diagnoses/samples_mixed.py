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
SOON, LOOKED = 3, 4  # steps, and records, before which nothing is said of what probes tell
ALIKE = 1e-6  # of the length of an answer: rounding


class SamplesMixed(Diagnosis):
    name = "samples_mixed"
    title = "the network mixes the samples of a batch"
    severity = "advice"
    needs = ("probe/half", "training")
    hold, after, least = 1, 0, 1
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

    @staticmethod
    def _are_alike(view: View) -> Found | None:
        """A sequence behind whose first token nothing arrives: attention over the batch sees one and the same token."""
        apart = view.values(PROBE + "apart", LOOKS)
        if not apart or max(apart) > ALIKE or not view.stuck or view.typical("batch_duplicates") == 1:
            return None
        # Heads of zeros, long steps, decay, dead units and weights that begin too small make answers alike as well.
        moved = view.travelled > 0.02 and not view.silent and view.update_max < 0.1 and view.weight_fall > 0.7
        sound = view.level0 < 2 and view.weight_scale > 0.4 and not view.dead > limit("dead")
        if not (moved and sound) or view.vanishing[0] < limit("vanishing"):
            return None
        text = (
            "The inputs do not arrive: in evaluation mode the network gives one and the same answer to all samples of the batch; "
            "in training answers differ by noise alone."
        )
        remedy = (
            "Look for a layer that takes the batch for another dimension: batch_first=True of attention and recurrent layers "
            "(the first token is the same in every sample), a mean over dim=0, a mask that hides everything."
        )
        numbers = [evidence("apart", apart[-1], "distance of the answers to two samples, over their length")]
        return Found(text, remedy, numbers, severity="likely", since=view.history.began)

    @staticmethod
    def _is_scrambled(view: View) -> Found | None:
        """Read from the graph of the loss: a fact, whatever is learned in spite of it."""
        if not view.now("scrambled") > 0:
            return None
        text = (
            "The scores are taken out of order: the loss gets them in another shape by view or reshape where dimensions were to be "
            "exchanged, so that the scores of one answer come from several places."
        )
        remedy = "Exchange the dimensions first: transpose(1, 2) of [B, T, classes], permute(0, 2, 3, 1) of [B, classes, H, W]."
        marks = [evidence("scrambled", 1.0, "a view where dimensions were to be exchanged, in the graph of the loss")]
        return Found(text, remedy, marks, severity="broken", since=view.history.began)

    def test(self, view: View) -> Found | None:
        if (scrambled := self._is_scrambled(view)) is not None:
            return scrambled
        if view.t < SOON or not view.has_seen(LOOKED):
            return None
        if (alike := self._are_alike(view)) is not None:
            return alike
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

"""Inputs that never change carry nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence, number, what_is_left
from cockpit_core.diagnosis.limits import limit

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View


class ConstantFeature(Diagnosis):
    name = "constant_feature"
    title = "some inputs never change"
    needs = ("input_constant",)
    hold, after, least = 4, 10, 10
    confidence = 0.7
    at_end = True
    explains = ("overfitting", "batch_repeated", "not_learning", "labels_random", "vanishing_gradients", "dead_units")

    @staticmethod
    def _is_empty(view: View, share: float) -> Found | None:
        """The same columns are zero at every record, and nothing else is: they are empty. (Pictures have zeros elsewhere too.)"""
        zeros, shares = view.every("input_zeros", 12), view.every("input_constant", 12)
        # Zeros are in these columns only; some may hold another value.
        same = len(zeros) >= 4 and share >= 0.08 and max(zeros) - min(zeros) < 0.005
        same = same and 0.5 * share < max(zeros) < share + 0.005
        wanting = view.wanting or (view.settled and view.level > limit("wanting"))  # values too: what is missing shows
        if not same or max(shares) - share > 1e-6 or not wanting or view.batch < 8:
            return None
        text = (
            f"{number(100 * share)} % of the input features are zero for every sample, and in the end "
            f"{what_is_left(view.level, view.drop)}: columns seem to be empty."
        )
        remedy = "Look where they come from: a join that found nothing, a wrong name, a fill value."
        numbers = [evidence("input_constant", share), evidence("level", view.level)]
        return Found(text, remedy, numbers, severity="likely", since=view.history.began)

    @staticmethod
    def _is_one_code(view: View) -> Found | None:
        """All samples of all batches have the same category, of which a table holds vectors for many."""
        counts, lookups = view.every("codes_constant", 12), view.first("lookups_constant")
        if len(counts) < 4 or not min(counts) > 0 or not lookups > 0 or view.batch < 8:
            return None  # lengths are codes that nobody looks up
        text = "An embedding is asked for one and the same row by every sample."
        harms = view.wanting or view.lags
        if harms:
            text = f"{text[:-1]}, and {what_is_left(view.level, view.drop)}: a category seems to be lost."
        remedy = "Look where these codes come from: a column that was not parsed, a fill value, a wrong name."
        return Found(
            text,
            remedy,
            [evidence("codes_constant", min(counts), "embeddings that always get the same code")],
            severity="likely" if harms else "advice",
            since=view.history.began,
        )

    @staticmethod
    def _is_stuck(view: View) -> Found | None:
        """A channel or column holds one value throughout, and in the end much is left that it should have told."""
        shares = view.every("input_stuck", 12)
        if len(shares) < 4 or not min(shares) > 0 or view.batch < 8 or not view.wanting:
            return None
        text = (
            f"{number(100 * min(shares))} % of the columns of the inputs hold one and the same value for all samples, and in the "
            f"end {what_is_left(view.level, view.drop)}: they seem to be stuck."
        )
        remedy = "Look where they come from: a sensor that stands still, a fill value, a column that was overwritten."
        numbers = [evidence("input_stuck", min(shares)), evidence("level", view.level)]
        return Found(text, remedy, numbers, severity="likely", since=view.history.began)

    def test(self, view: View) -> Found | None:
        if (stuck := self._is_stuck(view)) is not None:
            return stuck
        if (one := self._is_one_code(view)) is not None:
            return one
        share = min(view.every("input_constant", 12), default=0.0)
        if share == 1 and view.batch >= 8 and view.stuck:
            text = "All samples of a batch are the same to the network: every input feature is constant."
            remedy = "Look at one batch as the network gets it: inputs of zeros, or one sample in every row."
            return Found(text, remedy, [evidence("input_constant", share)], severity="likely", since=view.history.began)
        if (empty := self._is_empty(view, share)) is not None:
            return empty
        if not share > 0.5 or view.batch < 8 or view.typical("input_zeros") > 0.5:
            return None
        text = f"{number(100 * share)} % of the input features are the same for all samples of a batch."
        remedy = "Look whether a column was filled with a constant, or broadcast over the batch."
        numbers = [evidence("input_constant", share)]
        suffers = view.suffers or view.lingers
        if suffers:  # what is left does not tell enough
            text = f"{text[:-1]}, and the loss is still {number(100 * view.level)} % of that of a constant guess."
            numbers.append(evidence("level", view.level))
        return Found(
            text,
            remedy,
            numbers,
            severity="likely" if suffers and view.level > 0 else "advice",
            since=view.history.began,
        )

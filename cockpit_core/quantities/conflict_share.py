from __future__ import annotations

from cockpit_core.quantities.base import Quantity, Statistics, Value
from cockpit_core.quantities.gram_values import SAMPLES, check_samples, describe_samples, find_cosines, find_gram


class ConflictShare(Quantity):
    """How many samples work against each other? Share of pairs of the batch with ``g_n . g_m < 0``.

    Per network and layer. Around a half the samples have nothing in common; near 0 they all want the same.
    "ConflictShare/
    lowest" is the lowest cosine of a pair of the network: -1 is a step that one sample undoes for the other (Sankararaman
    et al. 2020 call its bound gradient confusion). Exact, from the Gram matrix. A product that is barely negative counts
    as much as any. Uses the first ``samples`` of the batch (None: all of it), and the value says so.
    """

    needs = ("gram",)
    layerwise = True
    description = "Share of pairs of samples whose gradients point against each other."
    question = "how many work against each other?"
    formula = "share of pairs with `g_n . g_m < 0`; `/lowest` cosine"
    cost = "a Gram matrix"

    def __init__(self, *, samples: int | None = SAMPLES, schedule=None):
        super().__init__(schedule=schedule)
        self.samples = check_samples(samples)

    def measure(self, statistics: Statistics) -> Value:
        K = find_gram(statistics)
        B = len(K)
        assert statistics.gram is not None
        share = float((K < 0).sum()) / (B * (B - 1))
        lowest = float(find_cosines(K).amin())
        method = describe_samples(statistics)
        parts = {"lowest": Value(lowest, method=method)}
        return Value(share, dict(statistics.gram.conflicts), method=method, parts=parts)

from __future__ import annotations

import torch

from cockpit_core.quantities.base import Quantity, Statistics, Value
from cockpit_core.quantities.gram_values import SAMPLES, check_samples, describe_samples, find_gram


class EffectiveRank(Quantity):
    """In how many directions do the samples pull? ``exp(-sum_i p_i log p_i)``, ``p`` the normalised spectrum.

    ``p_i`` are the eigenvalues of the Gram matrix of individual gradients over their sum (Roy and Vetterli 2007): between 1
    (all along one line) and B (all orthogonal and of equal length). "EffectiveRank/largest" is the share of the first
    direction. It falls as few samples come to dominate the gradient. It is bounded by the number of samples: compare
    runs with the same number. Uses the first ``samples`` of the batch (None: all of it), and the value says so.
    """

    needs = ("gram",)
    unit = "directions"
    description = "Number of directions that the individual gradients spread over, between 1 and the batch size."
    question = "in how many directions do they pull?"
    formula = "`exp(-sum p log p)`, p the spectrum of the Gram matrix; `/largest` share"
    cost = "a Gram matrix"

    def __init__(self, *, samples: int | None = SAMPLES, schedule=None):
        super().__init__(schedule=schedule)
        self.samples = check_samples(samples)

    def measure(self, statistics: Statistics) -> Value:
        values = torch.linalg.eigvalsh(find_gram(statistics)).clamp(min=0)
        p = values / values.sum()
        method = describe_samples(statistics)
        parts = {"largest": Value(float(p[-1]), method=method)}
        return Value(float(torch.exp(torch.special.entr(p).sum())), method=method, parts=parts)

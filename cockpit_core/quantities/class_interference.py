from __future__ import annotations

import torch
from torch import Tensor

from cockpit_core.quantities.base import NoValue, Quantity, Statistics, Value
from cockpit_core.quantities.gram_values import check_samples, describe_samples, find_cosines, find_gram


class ClassInterference(Quantity):
    """Do classes learn at each other's expense? Mean cosine between gradients of samples of different classes.

    Above 0 a step for one class helps the others, below 0 it harms them (stiffness: Fort et al. 2019, arXiv 1901.09491).
    "ClassInterference/same" is the mean cosine within classes, "ClassInterference/worst" the lowest mean of a pair of
    classes (its method names them). Labels are taken from the loss, one whole number per sample; no value where it was
    given none. Only the classes of this batch are seen: with many classes single values are noisy. Of the first ``samples``
    of the batch (None: all of it), and marked so.
    """

    needs = ("gram",)
    description = "Mean cosine between gradients of different classes: below 0 they harm each other."
    question = "do classes harm each other?"
    formula = "mean cosine between classes; `/same`, `/worst`"
    cost = "a Gram matrix"

    def __init__(self, *, samples: int | None = 32, schedule=None):
        super().__init__(schedule=schedule)
        self.samples = check_samples(samples)

    def measure(self, statistics: Statistics) -> Value:
        K, labels, gram = find_gram(statistics), statistics.labels, statistics.gram
        if labels is None or len(labels) != statistics.batch_size or gram is None:
            raise NoValue("the loss was given no class per sample (a vector of whole numbers)")
        cosines, labels = find_cosines(K), labels.cpu()[gram.chosen][K.diagonal() > 0]
        classes, index = torch.unique(labels, return_inverse=True)
        if len(classes) < 2:
            raise NoValue("the batch has samples of one class only")
        sums, pairs = add_by_class(cosines, index, len(classes))
        means = sums / pairs  # NaN for a class of one sample with itself
        apart = ~torch.eye(len(classes), dtype=torch.bool)
        lowest = int(torch.where(apart, means, torch.inf).argmin())
        one, other = (int(classes[k]) for k in divmod(lowest, len(classes)))
        parts = {"worst": Value(float(means.flatten()[lowest]), method=f"classes {one} and {other}")}
        within = pairs.diagonal().sum()
        if within > 0:
            parts["same"] = Value(float(sums.diagonal().sum() / within))
        method = describe_samples(statistics)
        return Value(float(sums[apart].sum() / pairs[apart].sum()), method=method, parts=parts)


def add_by_class(cosines: Tensor, index: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Sums of cosines over pairs of different samples [classes, classes], and the numbers of pairs."""
    member = torch.zeros(len(index), classes, dtype=cosines.dtype)
    member[torch.arange(len(index)), index] = 1
    counts = member.sum(0)
    sums = member.T @ (cosines - torch.diag(cosines.diagonal())) @ member
    return sums, torch.outer(counts, counts) - torch.diag(counts)

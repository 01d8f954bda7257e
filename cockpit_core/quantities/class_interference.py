from __future__ import annotations

import numpy as np

from cockpit_core.quantities.base import NoValue, Quantity, Statistics, Value
from cockpit_core.quantities.gram_values import SAMPLES, check_samples, describe_samples, find_cosines, find_gram

DECAY = 0.9
MOST_CLASSES = 32


class ClassInterference(Quantity):
    """Do classes learn at each other's expense? Mean cosine between gradients of samples of different classes.

    Above 0 a step for one class helps the others, below 0 it harms them (stiffness: Fort et al. 2019, arXiv 1901.09491).
    "ClassInterference/same" is the mean cosine within classes, "ClassInterference/worst" the lowest mean of a pair of
    classes (its method names them). Labels are taken from the loss, one whole number per sample; no value where it was
    given none. Only the classes of this batch are seen: with many classes single values are noisy. Uses the first
    ``samples`` of the batch (None: all of it), and the value says so.

    The table (``run.data.histogram("ClassInterference").counts``) has a row per class: its label, then the mean cosine with
    each class in the same order, over the steps so far, where each step counts 0.9 times as much as the one after it;
    NaN for pairs that were not seen. With more than 32 classes there is no table.
    """

    needs = ("gram",)
    description = "Mean cosine between gradients of different classes: below 0 they harm each other."
    question = "do classes harm each other?"
    formula = "mean cosine between classes; `/same`, `/worst`"
    cost = "a Gram matrix"

    def __init__(self, *, samples: int | None = SAMPLES, schedule=None):
        super().__init__(schedule=schedule)
        self.samples = check_samples(samples)
        self._sums: dict[tuple[int, int], tuple[float, float]] = {}
        self._step = -1

    def measure(self, statistics: Statistics) -> Value:
        K, labels, gram = find_gram(statistics), statistics.labels, statistics.gram
        if labels is None or len(labels) != statistics.batch_size or gram is None:
            raise NoValue("the loss was given no class per sample (a vector of whole numbers)")
        cosines, chosen = find_cosines(K).numpy(), labels.cpu()[gram.chosen].numpy()
        classes, index = np.unique(chosen[K.diagonal().numpy() > 0], return_inverse=True)
        if len(classes) < 2:
            raise NoValue("the batch has samples of one class only")
        sums, pairs = add_by_class(cosines, index, len(classes))
        with np.errstate(invalid="ignore"):
            means = sums / pairs  # NaN for a class of one sample with itself
        apart = ~np.eye(len(classes), dtype=bool)
        lowest = int(np.where(apart, means, np.inf).argmin())
        one, other = (int(classes[k]) for k in divmod(lowest, len(classes)))
        parts = {"worst": Value(float(means.flat[lowest]), method=f"classes {one} and {other}")}
        within = pairs.diagonal().sum()
        if within > 0:
            parts["same"] = Value(float(sums.diagonal().sum() / within))
        method = describe_samples(statistics)
        table = self.remember(statistics.step, classes.tolist(), sums, pairs)
        return Value(float(sums[apart].sum() / pairs[apart].sum()), method=method, parts=parts, table=table)

    def remember(self, step: int, classes: list[int], sums: np.ndarray, pairs: np.ndarray) -> np.ndarray | None:
        """The table so far, [classes, 1 + classes]; None where there are too many."""
        if step <= self._step:  # another run, or one that was resumed from an earlier step
            self._sums.clear()
        self._step = step
        self._sums = {pair: (DECAY * total, DECAY * count) for pair, (total, count) in self._sums.items()}
        for one, own_sums, own_pairs in zip(classes, sums.tolist(), pairs.tolist(), strict=True):
            for other, more, number in zip(classes, own_sums, own_pairs, strict=True):
                total, count = self._sums.get((one, other), (0.0, 0.0))
                self._sums[one, other] = total + more, count + number
        known = sorted({one for one, _ in self._sums})
        if len(known) > MOST_CLASSES:
            return None
        rows = [[one, *(mean_of(self._sums.get((one, other))) for other in known)] for one in known]
        return np.array(rows, dtype=np.float64)


def mean_of(pair: tuple[float, float] | None) -> float:
    return pair[0] / pair[1] if pair is not None and pair[1] > 0 else float("nan")


def add_by_class(cosines: np.ndarray, index: np.ndarray, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Sums of cosines over pairs of different samples [classes, classes], and the numbers of pairs."""
    member = np.zeros((len(index), classes))
    member[np.arange(len(index)), index] = 1
    counts = member.sum(0)
    sums = member.T @ (cosines - np.diag(cosines.diagonal())) @ member
    return sums, np.outer(counts, counts) - np.diag(counts)

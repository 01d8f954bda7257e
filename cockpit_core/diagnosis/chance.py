"""What a loss is measured by: that of an answer which ignores the input, and how many elements it adds up."""

from __future__ import annotations

import math

from cockpit_core.diagnosis.facts import BINARY_LOSSES, CLASS_LOSSES, KNOWN_LOSSES, LIKELIHOODS, TRIPLETS
from cockpit_core.diagnosis.history import SIGNAL, Observation
from cockpit_core.diagnosis.mean_answer import MeanAnswer
from cockpit_core.diagnosis.reading import RECENT, mean, median, nan, ratio, variance
from cockpit_core.foundation.kept import kept


class Chance(MeanAnswer):
    """Features of the targets and of the loss function."""

    @kept
    def guess(self) -> float:
        """The loss of a network that knows nothing: ln C, or the variance of the targets."""
        loss = self.facts.loss
        if loss in CLASS_LOSSES:
            classes = self.last(SIGNAL + "classes")
            return math.log(classes) if classes > 1 else nan
        return math.log(2) if loss in BINARY_LOSSES else self.chance

    @kept
    def top_share(self) -> float:
        """How often always giving the commonest label is right. Among few samples some label is the commonest by
        accident: then 1 / C, unless the share is far above that."""
        share = mean(self.values(SIGNAL + "label_top_share", len(self.late)))
        if self.facts.loss in BINARY_LOSSES:
            return share
        classes, count = self.last(SIGNAL + "classes"), max(1.0, self.typical("label_count"))
        if not classes > 1 or share != share:
            return nan
        even = 1 / classes
        accident = 2 * math.sqrt(2 * math.log(classes) * even * (1 - even) / count)
        return share if share - even > accident else even

    @kept
    def labels_are_rows(self) -> bool:
        """Each row of the loss has a label of its own, and there are as many classes as rows, batch after batch: the question is
        which rows of a batch belong together (contrastive losses). How often the answer is right hangs on how many there are."""
        counts, entropies = self.every("label_count", 4), self.every("label_entropy", 4)
        apart = all(abs(entropy - math.log(count)) < 1e-4 for count, entropy in zip(counts, entropies, strict=False))
        return bool(counts) and min(counts) >= 8 and apart and self.last(SIGNAL + "classes") <= max(counts)

    @kept
    def classes_in_use(self) -> float:
        """How many equally frequent classes would be as uncertain as the labels are. NaN where batches differ in their mean label
        by more than shuffled ones do: then a batch says little about all."""
        means = self.every("target_mean", 24)
        spread = math.sqrt(mean(self.every("target_variance", 24)) / self.batch) if self.batch > 0 else nan
        if len(means) < 4 or not math.sqrt(variance(means)) < 2 * spread:
            return nan
        return math.exp(mean(self.every("label_entropy", 24)))

    @kept
    def chance(self) -> float:
        """The loss of an answer that does not look at the input: entropy of the labels, or variance of the targets."""
        loss, share = self.facts.loss, self.top_share
        if loss in CLASS_LOSSES:
            classes = self.last(SIGNAL + "classes")
            if not classes > 1 or not share > 1 / classes:
                return self.guess
            rest = (1 - share) / (classes - 1)  # the other labels spread evenly: the most entropy there can be
            return -share * math.log(share) - (1 - share) * math.log(rest) if share < 1 else self.guess
        if loss in BINARY_LOSSES:
            if share > 0.999:  # one half of the data of an adversary: no answer ignores the input there
                return nan
            return -share * math.log(share) - (1 - share) * math.log(1 - share) if share > 0.5 else math.log(2)
        if loss in TRIPLETS:  # one and the same answer to all is as far from the one as from the other
            return self.static("static_margin")
        if loss == "MSELoss":
            return median(spread**2 for spread in self.column(SIGNAL + "target_std"))
        return median(self.values(SIGNAL + "target_chance", 48))

    @kept
    def real_targets(self) -> bool:
        """The loss compares with real numbers; also one of the user's own that was given some."""
        own = self.facts.loss not in (*KNOWN_LOSSES, *LIKELIHOODS) and SIGNAL + "target_std" in self.history.names
        return self.facts.is_value or own

    def share_of_chance(self, loss: float) -> float:
        """Of a likelihood, which has no zero: for counts the deviance over that of always giving the mean; for a normal
        density the variance that it would need by itself over that of the targets."""
        everywhere = (*self.history.early, *self.late)
        chance = mean(seen.get(SIGNAL + "likelihood_chance") for seen in everywhere)
        if self.typical("loss_factor") < 0:  # it is maximised
            return nan
        loss = loss / self.summed
        if self.facts.loss == "PoissonNLLLoss":
            floor = mean(seen.get(SIGNAL + "likelihood_floor") for seen in everywhere)
            return ratio(loss - floor, chance - floor)
        return math.exp(min(50.0, 2 * (loss - chance)))

    @kept
    def floor(self) -> float:
        """The least that the loss can be: 0, but for counts."""
        known = mean(seen.get(SIGNAL + "likelihood_floor") for seen in (*self.history.early, *self.late))
        return known * self.summed if self.facts.loss == "PoissonNLLLoss" and known == known else 0.0

    @kept
    def pairing(self) -> float:
        """By how much more inputs are like their own targets than like those of other samples; NaN where it is not known."""
        known = self.values(SIGNAL + "pair_likeness", 12)
        return mean(known) if len(known) >= 4 else nan

    @kept
    def target_variance(self) -> float:
        """Of all batches that were looked at, on average."""
        return mean(seen.get(SIGNAL + "target_std") ** 2 for seen in (*self.history.early, *self.late))

    @kept
    def term(self) -> float:
        """The share of the loss that is the term whose chance is known; 1 where it is all of it."""
        return self._share_of_term(self.late[-RECENT:])

    @kept
    def term0(self) -> float:
        return self._share_of_term(self.history.early[:2])

    def _share_of_term(self, records: list[Observation]) -> float:
        if SIGNAL + "loss_term" not in self.history.names or self.now("passes") > 1:
            return 1.0
        scaled = self.now("loss_scale")
        share = median(ratio(seen.get(SIGNAL + "loss_term"), seen.get("Loss")) for seen in records)
        return 1.0 if share != share or scaled == scaled else max(0.0, share)

    @kept
    def summed(self) -> float:
        """How many elements the loss adds up: 1 for a mean."""
        addends, passes = self.typical("loss_addends"), max(1.0, self.now("passes"))
        if addends > 1.5 or (addends == 1 and passes == 1):  # of several passes a factor is that of accumulation
            return addends * self.factor * passes
        single = (
            passes == 1 and not self.typical("passes") > 1
        )  # a record that a spike set off knows the last passes only
        by_hand = self.now("root_factor") if single and self.facts.by_module else nan
        by_hand = by_hand / self.now("loss_scale") if self.now("loss_scale") > 0 else by_hand
        return (float(self.batch) if self.static("static_sum") == 1 else 1.0) * (by_hand if by_hand > 0 else 1.0)

    @kept
    def factor(self) -> float:
        """The factor on the loss, where its graph shows one; else 1. A loss scale does not count."""
        factor, scale = abs(self.typical("loss_factor")), self.now("loss_scale")
        return 1.0 if factor != factor else factor if scale != scale else factor / scale

    @kept
    def adds_samples(self) -> bool:
        """The losses of samples are added up; those of one sample's outputs alone may be, and are meant so."""
        addends, elements = self.typical("loss_addends"), self.typical("loss_elements")
        return self.static("static_sum") == 1 or (addends > 1.5 and addends * self.factor > 0.5 * elements)

"""What the loss says: how far it has come, whether anything is learned, what ignoring the input would give."""

from __future__ import annotations

import math

from cockpit_core.diagnosis.answers import Answers
from cockpit_core.diagnosis.facts import LIKELIHOODS
from cockpit_core.diagnosis.history import FRESH, SIGNAL
from cockpit_core.diagnosis.reading import mean, median, nan, ratio, variance
from cockpit_core.foundation.kept import kept

PATIENT = 20  # steps that every network is given
FAR = 4  # times chance: a network that begins so far above it has to come down first


class Progress(Answers):
    """Features of the loss."""

    @kept
    def losses(self) -> list[float]:
        return self.column("Loss")

    @kept
    def finite(self) -> list[float]:
        return [loss for loss in self.losses if math.isfinite(loss)]

    @kept
    def broken(self) -> bool:
        return self.history.first_not_finite >= 0

    @kept
    def window(self) -> int:
        return max(3, min(15, self.n // 4))

    @kept
    def loss0(self) -> float:
        """The loss of the first tracked steps, without later ones where few are tracked."""
        early = [seen for seen in self.history.early[:3] if seen.step <= self.history.began + FRESH]
        return mean(seen.get("Loss") for seen in early)

    @kept
    def very_first(self) -> float:
        return self.history.early[0].get("Loss") if self.history.early else nan

    @kept
    def recent(self) -> float:
        """Mean of the last losses, tracked or not; NaN where they are too few, or not seen."""
        return self.glance("loss") if self.glance("count") >= 8 else nan

    def glance(self, name: str) -> float:
        """What the last record says of the losses before it; NaN where it says nothing."""
        return self.late[-1].get(f"{SIGNAL}recent_{name}") if self.late else nan

    @kept
    def recent_trend(self) -> float:
        """Slope of the last losses that were looked at, in units of its standard error."""
        last = self.glance("trend")
        return last if last == last else self.now("recent_trend")

    @kept
    def finished(self) -> bool:
        """The training is over: nothing is still to come."""
        return self.history.finished

    @kept
    def loss(self) -> float:
        return self.recent if self.recent == self.recent else mean(self.finite[-self.window :])

    @kept
    def drop(self) -> float:
        """Share of the first loss that is gone; NaN where the loss may have any sign and begins around zero."""
        signed = self.history.lowest.get("Loss", nan) < 0 or self.moving_targets
        if self.level != self.level and signed and abs(self.loss0) < 0.3 * median(self.values(SIGNAL + "loss_std", 12)):
            return nan
        if self.level == self.level and self.begin == self.begin:  # how hard a batch is by itself is in both
            return 1 - self.level / self.begin
        return (self.loss0 - self.loss) / (abs(self.loss0) + 1e-12)

    @kept
    def begin(self) -> float:
        """The first losses over the variance of their own targets, or as a share of chance where they are likelihoods; NaN
        for other losses."""
        if self.facts.loss in LIKELIHOODS:
            return self.share_of_chance(self.loss0)
        if self.facts.loss != "MSELoss" or self.now("passes") > 1:
            return nan
        early = [seen for seen in self.history.early[:3] if seen.step <= self.history.began + FRESH]
        return ratio(self.term0 * mean(seen.get("Loss") for seen in early),
                     mean(seen.get(SIGNAL + "target_std") ** 2 for seen in early) * self.summed)  # fmt: skip

    @kept
    def spike(self) -> float:
        """The highest loss over the first; one that is no worse than chance is no spike (fine-tuning begins low), and
        individual losses set the scale of a loss that begins near zero."""
        highest = self.history.highest.get("Loss", nan)
        if highest < 1.5 * self.guess * self.summed:
            return min(1.0, highest / (abs(self.loss0) + 1e-12))
        own = median(seen.get(SIGNAL + "loss_std") for seen in self.history.early)
        return highest / max(abs(self.loss0), own if own == own else 0.0, 1e-12)

    @kept
    def rose(self) -> float:
        """The highest loss over the very first; NaN where that is not above zero."""
        return self.history.highest.get("Loss", nan) / self.very_first if self.very_first > 0 else nan

    @kept
    def level(self) -> float:
        """The loss over that of chance; a sum is first divided by what it was summed over. NaN where targets move: what
        would be chance moves with them."""
        if self.moving_targets:
            return nan
        if self.facts.loss in LIKELIHOODS:
            return self.share_of_chance(self.loss)
        if self.facts.loss == "MSELoss" and self.recent == self.recent:
            return ratio(self.recent * self.term, self.target_variance * self.summed * self.undivided)
        if self.facts.loss == "MSELoss":  # step by step: a heavy tail is then in both
            pairs = [ratio(o.get("Loss"), o.get(SIGNAL + "target_std") ** 2) for o in self.late[-self.window :]]
            return median(pairs) * self.term / (self.summed * self.undivided)
        if self.chance != self.chance:  # a loss of the user's own: known as long as nothing is learned
            return self.own_level if self.ignores else nan
        return ratio(self.loss * self.term, self.chance * self.summed * self.undivided)

    @kept
    def undivided(self) -> float:
        """Backward passes whose losses are added up and not divided by their number; 1 where they are, or seem to be."""
        passes = self.now("passes")
        each = ratio(self.level0, passes)
        return passes if passes >= 2 and 0.7 < each < 1.5 and self.summed == 1 else 1.0

    @kept
    def level0(self) -> float:
        return ratio(self.very_first * self.term0, self.guess * self.summed)

    @kept
    def spread(self) -> float:
        """Standard error of a batch's loss as its individual losses predict it."""
        return median(self.column(SIGNAL + "loss_std")) / math.sqrt(self.batch)

    @kept
    def significance(self) -> float:
        """The drop in units of that standard error."""
        count = self.glance("count") if self.loss == self.recent else self.window
        return (self.loss0 - self.loss) / (self.spread * math.sqrt(1 / 3 + 1 / count) + 1e-30)

    @kept
    def trend(self) -> float:
        """Slope of a straight line through all losses in units of its standard error: below -3 it falls for sure."""
        n, i, loss, ii, i_loss, loss2 = self.history.line
        if n < 8 or self.sparse:
            return self.recent_trend
        spread_i, cross, spread = ii - i * i / n, i_loss - i * loss / n, loss2 - loss * loss / n
        left = max(spread - cross * cross / spread_i, 1e-12 * abs(loss2) + 1e-300) / (n - 2)
        return cross / math.sqrt(left * spread_i)

    @kept
    def fluctuation(self) -> float:
        """The fluctuation of batch losses over that of independent batches: 1 = independent batches."""
        recent = self.finite[-40:]
        if len(recent) < 12:
            return nan
        bends = [abs(recent[i - 1] - 2 * recent[i] + recent[i + 1]) for i in range(1, len(recent) - 1)]
        own = self.typical("loss_std") / math.sqrt(self.batch)
        return median(bends) / 0.6745 / math.sqrt(6) / own if own > 0 else nan

    @kept
    def hits(self) -> float:
        """How many standard errors the share of right answers is above always giving the commonest label."""
        usual = self.top_share
        accuracies = self.values(SIGNAL + "accuracy", 15)
        if self.sparse:  # of the second half
            known = [a for seen in self.late if 2 * seen.step >= self.t and (a := seen.get(SIGNAL + "accuracy")) == a]
            accuracies = known[-15:]
        if usual != usual or len(accuracies) < (1 if self.sparse else 4):
            return nan
        return (mean(accuracies) - usual) / (0.5 / math.sqrt(len(accuracies) * self.batch))

    @kept
    def gain(self) -> float:
        """Share of the loss that is gone, counted from chance where it began above: coming down to the mean is no gain."""
        if self.level != self.level:
            return self.drop
        if self.chance != self.chance:
            return min(self.drop, 1 - self.level)
        if self.begin == self.begin:
            return 1 - self.level / min(self.begin, 1.0)
        first, now = self.loss0 * self.term0, self.loss * self.term
        start = min(first, self.chance * self.summed) if first > 0 else first
        return (start - now) / (abs(start) + 1e-12)

    @kept
    def learns(self) -> bool:
        """Something has been learned beyond doubt."""
        sure = self.significance > 6 and self.gain > 0.05
        return self.gain > 0.5 or (self.drop > 0.8 and not self.ignores) or self.level < 0.7 or self.hits > 4 or sure

    @kept
    def thrives(self) -> bool:
        """Learning goes well: whatever else is found does no harm that can be seen."""
        return self.has_seen(3) and (self.drop > 0.5 if self.level != self.level else self.level < 0.6)

    @kept
    def struggles(self) -> bool:
        """The run is visibly worse than it should be by now: what was found does harm. Nine of ten healthy runs are below
        chance after 20 steps, below nine tenths of it after 40, below eight tenths after 80."""
        if self.broken or self.t < PATIENT:
            return self.broken
        if self.does_well:
            return False
        if self.level == self.level:
            return self.is_high and not self.comes_down
        return self.drop < self.usual_drop

    @kept
    def is_high(self) -> bool:
        """The loss is a larger share of chance than that of nine of ten healthy runs by now."""
        least = 0.8 if self.facts.loss in LIKELIHOODS else 0.6  # the rest of a likelihood is the spread of the data
        return self.level > max(least, 1 - 0.1 * math.log2(max(self.t, PATIENT) / PATIENT))

    @property
    def usual_drop(self) -> float:
        """Share of the first loss that nine of ten healthy runs have lost by now."""
        return min(0.5, 0.05 + 0.12 * math.log2(max(self.t, PATIENT) / PATIENT))

    @kept
    def comes_down(self) -> bool:
        """The loss began a little above chance and falls as fast as it should: from there it takes longer to be below. (So
        it is with rare labels, and with losses of several terms, whose chance is not known.)"""
        start = ratio(
            self.very_first * self.term0, self.chance * self.summed * self.undivided
        )  # before any step could do harm
        fallen = 1 - ratio(self.loss, self.very_first)
        if self.begin == self.begin:
            start, fallen = (self.begin if self.batch >= 16 else 1.0), self.drop  # of few samples it is an accident
        half = max(4, self.window)
        falls = self.improves or mean(self.finite[-2 * half : -half]) > mean(self.finite[-half:])
        still = falls and (self.t < 6 * PATIENT or self.level < 0.8)
        return 1.15 < start < FAR and fallen >= self.usual_drop and still

    @kept
    def lags(self) -> bool:
        """Worse than three of four healthy runs: enough where the fact beside it is a strong one."""
        if self.t < PATIENT or self.level != self.level:
            return self.struggles
        return self.is_behind(self.level) and not self.comes_down and not self.does_well

    @kept
    def fall(self) -> tuple[float, float]:
        """The loss of a quarter of the run ago over that of now, and by how much its logarithm falls in as many steps as the
        run has had, at this pace: 0.7 = it halves."""
        known = [(float(o.step), v) for o in self.late if (v := self._from_zero(o.get(SIGNAL + "recent_loss"))) > 0
                 and o.get(SIGNAL + "recent_count") >= 8]  # fmt: skip
        if not known or not self.sparse:
            known = [(step, self._from_zero(loss)) for step, loss in self._means()]
        older = [(step, v) for step, v in known if step <= 0.75 * known[-1][0]]
        if not older or not known[-1][1] > 0 or not older[-1][1] > 0:
            return nan, nan
        (before, high), (now, low) = older[-1], known[-1]
        return high / low, math.log(high / low) / (now - before) * now

    def _from_zero(self, loss: float) -> float:
        """Likelihoods have no zero: as a share of chance."""
        return self.share_of_chance(loss) if self.facts.loss in LIKELIHOODS else loss

    def _means(self) -> list[tuple[float, float]]:
        """Steps and losses, averaged over some records each."""
        size = max(3, self.window // 2)
        parts = [self.late[end - size : end] for end in range(len(self.late), size - 1, -size)]
        return [(mean(o.step for o in part), mean(o.get("Loss") for o in part)) for part in reversed(parts)]

    def is_behind(self, level: float) -> bool:
        """Would a run with this loss, as a share of chance, be worse by now than three of four healthy ones?"""
        least = 0.8 if self.facts.loss in LIKELIHOODS else 0.7 if self.of_texts else 0.5
        return level > max(least, 0.97 - 0.2 * math.log2(max(self.t, PATIENT) / PATIENT))

    @kept
    def improves(self) -> bool:
        """The last losses are lower than those before them, by more than they fluctuate."""
        half = max(4, self.window)
        before, after = self.finite[-2 * half : -half], self.finite[-half:]
        if len(before) < half or self.sparse:
            return self.recent_trend < -3
        spread = math.sqrt((variance(before) + variance(after)) / half)
        return mean(before) - mean(after) > 2 * spread

    @kept
    def lasting(self) -> bool:
        """The loss is still far above where it began, and no better than a guess: not a spike that came back."""
        now = self.loss if self.sparse else mean(self.finite[-self.window :])  # a peak between two records is over
        known = 0.3 * self.guess * self.summed  # what was trained before begins low
        start = max(abs(self.loss0), known if known == known else 0.0)
        return self.broken or now > 3 * start or median(self.finite[-2:]) > 3 * start

    @kept
    def rests_at_chance(self) -> bool:
        """The loss came down from above to that of ignoring the input, and no further."""
        half = max(3, self.window)
        before, after = mean(self.finite[-2 * half : -half]), mean(self.finite[-half:])
        if self.recent == self.recent:  # few records: the losses before this one, and before the last
            before, after = (self.values(SIGNAL + "recent_loss", 2) * 2)[:2]
        from_above = self.very_first * self.term0 > 1.03 * self.chance * self.summed
        return from_above and 0.97 < self.level < 1.08 and abs(before - after) < 0.03 * abs(after)

    @kept
    def was_good(self) -> bool:
        """A loss of classes was below chance once by more than accident: something was learned, whatever came of it (an
        adversary caught up)."""
        if self.facts.is_value or self.level != self.level:
            return False
        chance = self.chance * self.summed * self.undivided
        return self.term * self.history.lowest.get("Loss", nan) < min(0.9 * chance, chance - 5 * self.spread)

    @kept
    def moving_targets(self) -> bool:
        """Targets are different from those at the start: the network makes them itself (reinforcement learning,
        distillation), and
        its loss need not fall."""
        if not self.facts.is_value or self.n < 8:
            return False
        early, late = self.history.early, self.late[-4:]
        spread, before = (median(o.get(SIGNAL + "target_std") for o in part) for part in (late, early))
        shift = median(o.get(SIGNAL + "target_mean") for o in late) - median(
            o.get(SIGNAL + "target_mean") for o in early
        )
        return spread > 2 * before or before > 2 * spread or abs(shift) > max(spread, before)

    @kept
    def by_frequency(self) -> float:
        """Of tokens or pixels: the loss over the entropy of their frequencies, which every network finds first. 1 = nothing
        but that was learned."""
        entropy = mean(self.values(SIGNAL + "token_entropy", 24))
        return ratio(self.loss * self.term, entropy * self.summed * self.undivided)

    @kept
    def stuck(self) -> bool:
        """Nothing has been learned, as far as is known; False where chance is not known and the loss fell at all."""
        if self.t >= 5 * PATIENT and 0.985 < self.by_frequency < 1.05 and not self.hits > 3 and not self.improves:
            return True
        if self.ignores and not (self.hits > 3 or self.moving_targets or self.improves):
            return True
        falls = (self.significance > 4 or self.trend < -3) and not 0.985 < self.level < 1.03
        if self.hits > 3 or (falls and not self.rests_at_chance) or self.moving_targets or self.was_good:
            return False
        if self.level != self.level:
            return self.drop < 0.03
        return self.level > (0.97 if self.facts.is_value else 0.93)

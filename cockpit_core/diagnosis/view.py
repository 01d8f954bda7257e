"""Features of a run up to one tracked step, each computed when a rule asks for it, once. NaN: not known.

A comparison with NaN is False, so a rule that lacks evidence is silent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cached_property
from itertools import pairwise

import numpy as np

from cockpit_core.diagnosis.facts import BINARY_LOSSES, CLASS_LOSSES, Facts
from cockpit_core.diagnosis.history import FRESH, SIGNAL, History

RECENT = 6
nan = math.nan


def median(values: Iterable[float]) -> float:
    ordered = sorted(value for value in values if value == value)
    if not ordered:
        return nan
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def mean(values: Iterable[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else nan


def ratio(a: float, b: float) -> float:
    return a / b if b else nan


class View:
    """What a rule sees. ``t``: this step; ``n``: tracked steps so far."""

    def __init__(self, history: History, facts: Facts):
        self.history, self.facts = history, facts
        self.t = history.late[-1].step if history.late else 0
        self.n = history.count
        self.late = list(history.late)
        self.latest = next((seen for seen in reversed(self.late) if SIGNAL + "training" in seen.scalars), None)
        self._values: dict[tuple[str, int], list[float]] = {}
        self.batch = max(1, self.late[-1].batch_size) if self.late else 1

    # ---- reading columns: each where it was recorded, for quantities may have paces of their own ----

    def static(self, name: str) -> float:
        return self.history.static.get(name, nan)

    def values(self, name: str, count: int = RECENT) -> list[float]:
        """The last values of a column, oldest first."""
        known = self._values.get((name, count))
        if known is None:
            known = []
            if name in self.history.names:
                for seen in reversed(self.late):
                    if (value := seen.get(name)) == value:
                        known.append(value)
                        if len(known) == count:
                            break
                known.reverse()
            self._values[name, count] = known
        return known

    def last(self, name: str) -> float:
        found = self.values(name, 1)
        return found[0] if found else nan

    def now(self, name: str) -> float:
        """The signal at the last step that had signals; NaN where it was left out there (a count of nothing)."""
        return self.latest.get(SIGNAL + name) if self.latest is not None else nan

    def typical(self, name: str) -> float:
        """Median of a signal over the last steps that had it."""
        return median(self.values(SIGNAL + name))

    def first(self, name: str) -> float:
        """A signal at the start of the run."""
        return self.history.first.get(SIGNAL + name, nan)

    def every(self, name: str, count: int = RECENT) -> list[float]:
        return self.values(SIGNAL + name, count)

    def ratios(self, above: str, below: str, count: int = RECENT) -> list[float]:
        """The last quotients of two columns that come together."""
        found = [r for seen in self.late if (r := ratio(seen.get(above), seen.get(below))) == r]
        return found[-count:]

    # ---- the loss ----

    @cached_property
    def losses(self) -> list[float]:
        return [seen.get("Loss") for seen in self.late]

    @cached_property
    def finite(self) -> list[float]:
        return [loss for loss in self.losses if math.isfinite(loss)]

    @cached_property
    def broken(self) -> bool:
        return self.history.first_not_finite >= 0

    @cached_property
    def window(self) -> int:
        return max(3, min(15, self.n // 4))

    @cached_property
    def loss0(self) -> float:
        """Of the first tracked steps; not of later ones, where few are tracked."""
        early = [seen for seen in self.history.early[:3] if seen.step <= self.history.began + FRESH]
        return mean(seen.get("Loss") for seen in early)

    @cached_property
    def very_first(self) -> float:
        return self.history.early[0].get("Loss") if self.history.early else nan

    @cached_property
    def loss(self) -> float:
        return mean(self.finite[-self.window :])

    @cached_property
    def drop(self) -> float:
        """Share of the first loss that is gone; NaN where the loss may have any sign and begins around zero."""
        if self.level != self.level and abs(self.loss0) < 0.3 * median(self.values(SIGNAL + "loss_std", 12)):
            return nan
        return (self.loss0 - self.loss) / (abs(self.loss0) + 1e-12)

    @cached_property
    def spike(self) -> float:
        """The highest loss over the first; one that is no worse than chance is no spike (fine-tuning begins low), and
        individual losses set the scale of a loss that begins near zero."""
        highest = self.history.highest.get("Loss", nan)
        if highest < 1.5 * self.guess * self.summed:
            return min(1.0, highest / (abs(self.loss0) + 1e-12))
        own = median(seen.get(SIGNAL + "loss_std") for seen in self.history.early)
        return highest / max(abs(self.loss0), own if own == own else 0.0, 1e-12)

    @cached_property
    def guess(self) -> float:
        """The loss of a network that knows nothing: ln C, or the variance of the targets."""
        loss = self.facts.loss
        if loss in CLASS_LOSSES:
            classes = self.last(SIGNAL + "classes")
            return math.log(classes) if classes > 1 else nan
        return math.log(2) if loss in BINARY_LOSSES else self.chance

    @cached_property
    def top_share(self) -> float:
        """How often always giving the commonest label is right. Of few samples one label is the commonest by accident:
        1 / C, unless the share is far above that."""
        share = mean(seen.get(SIGNAL + "label_top_share") for seen in self.late)
        if self.facts.loss in BINARY_LOSSES:
            return share
        classes, count = self.last(SIGNAL + "classes"), max(1.0, self.typical("label_count"))
        if not classes > 1 or share != share:
            return nan
        even = 1 / classes
        accident = 2 * math.sqrt(2 * math.log(classes) * even * (1 - even) / count)
        return share if share - even > accident else even

    @cached_property
    def chance(self) -> float:
        """The loss of an answer that does not look at the input: entropy of the labels, or variance of the targets."""
        loss, share = self.facts.loss, self.top_share
        if loss in CLASS_LOSSES:
            classes = self.last(SIGNAL + "classes")
            if not classes > 1 or not share > 1 / classes:
                return self.guess
            rest = (1 - share) / (classes - 1)  # the others as even as can be: the most that such labels hide
            return -share * math.log(share) - (1 - share) * math.log(rest) if share < 1 else self.guess
        if loss in BINARY_LOSSES:
            return -share * math.log(share) - (1 - share) * math.log(1 - share) if 0.5 < share < 0.999 else math.log(2)
        if loss == "MSELoss":
            return median(seen.get(SIGNAL + "target_std") ** 2 for seen in self.late)
        return nan

    @cached_property
    def level(self) -> float:
        """The loss over that of chance; a sum is first divided by what it was summed over."""
        if self.facts.loss == "MSELoss":  # step by step: a heavy tail is in both
            pairs = [ratio(o.get("Loss"), o.get(SIGNAL + "target_std") ** 2) for o in self.late[-self.window :]]
            return median(pairs) / self.summed
        return ratio(self.loss, self.chance * self.summed)

    @cached_property
    def level0(self) -> float:
        return ratio(self.very_first, self.guess * self.summed)

    @cached_property
    def summed(self) -> float:
        return float(self.batch) if self.static("static_sum") == 1 else 1.0

    @cached_property
    def spread(self) -> float:
        """Standard error of a batch's loss as its individual losses predict it."""
        return median(seen.get(SIGNAL + "loss_std") for seen in self.late) / math.sqrt(self.batch)

    @cached_property
    def significance(self) -> float:
        """The drop in units of that standard error."""
        return (self.loss0 - self.loss) / (self.spread * math.sqrt(1 / 3 + 1 / self.window) + 1e-30)

    @cached_property
    def trend(self) -> float:
        """Slope of a straight line through all losses in units of its standard error: below -3 it falls for sure."""
        n, i, loss, ii, i_loss, loss2 = self.history.line
        if n < 8:
            return nan
        spread_i, cross, spread = ii - i * i / n, i_loss - i * loss / n, loss2 - loss * loss / n
        left = max(spread - cross * cross / spread_i, 1e-12 * abs(loss2) + 1e-300) / (n - 2)
        return cross / math.sqrt(left * spread_i)

    @cached_property
    def fluctuation(self) -> float:
        """Of batch losses over what independent batches must show: 1 = independent batches."""
        recent = self.finite[-40:]
        if len(recent) < 12:
            return nan
        bends = [abs(recent[i - 1] - 2 * recent[i] + recent[i + 1]) for i in range(1, len(recent) - 1)]
        own = self.typical("loss_std") / math.sqrt(self.batch)
        return median(bends) / 0.6745 / math.sqrt(6) / own if own > 0 else nan

    @cached_property
    def hits(self) -> float:
        """How many standard errors the share of right answers is above always giving the commonest label."""
        usual = self.top_share
        pairs = [(a, usual) for seen in self.late if (a := seen.get(SIGNAL + "accuracy")) == a]
        if usual != usual:
            return nan
        if len(pairs) < 4:
            return nan
        pairs = pairs[-15:]
        above = mean(a - b for a, b in pairs)
        return above / (0.5 / math.sqrt(len(pairs) * self.batch))

    @cached_property
    def learns(self) -> bool:
        """Something has been learned beyond doubt."""
        return self.drop > 0.5 or self.level < 0.7 or self.hits > 4 or (self.significance > 6 and self.drop > 0.05)

    @cached_property
    def thrives(self) -> bool:
        """Learning goes well: whatever else is found does no harm that can be seen."""
        return self.n >= 3 and (self.drop > 0.5 if self.level != self.level else self.level < 0.6)

    @cached_property
    def lasting(self) -> bool:
        """The loss is still far above where it began: not a spike that came back."""
        return self.broken or self.loss > 3 * abs(self.loss0) or median(self.finite[-2:]) > 3 * abs(self.loss0)

    @cached_property
    def rests_at_chance(self) -> bool:
        """The loss came down from above to that of ignoring the input, and no further."""
        half = max(3, self.window)
        before, after = mean(self.finite[-2 * half : -half]), mean(self.finite[-half:])
        from_above = self.very_first > 1.03 * self.chance * self.summed
        return from_above and 0.97 < self.level < 1.08 and abs(before - after) < 0.03 * abs(after)

    @cached_property
    def stuck(self) -> bool:
        """Nothing has been learned, as far as is known; False where chance is not known and the loss fell at all."""
        falls = self.significance > 4 or self.trend < -3
        if self.hits > 3 or (falls and not self.rests_at_chance):
            return False
        if self.level != self.level:
            return self.drop < 0.03
        return self.level > (0.97 if self.facts.is_value else 0.93)

    # ---- steps ----

    @cached_property
    def rate(self) -> float:
        return self.last("LearningRate")

    @cached_property
    def update(self) -> float:
        """Length of a step over the length of all parameters: typical of the last ones, and of now where few are known."""
        last = self.ratios("UpdateSize", "ParamNorm")
        return min(median(last), last[-1]) if last else nan

    @cached_property
    def update_max(self) -> float:
        return self.history.highest.get("update", nan)

    @cached_property
    def starts_small(self) -> bool:
        """The first weights are far shorter than usual initialisations make them: relative steps are long by that alone."""
        usual = math.sqrt(sum(shape[0] / 3 for shape in self.facts.shapes if len(shape) > 1))
        return self.norm0 < 0.3 * usual

    @cached_property
    def clipped(self) -> float:
        """The gradient as the optimizer gets it over that of the backward pass."""
        return median(self.ratios("GradNormClipped", "GradNorm"))

    @cached_property
    def rate_fall(self) -> float:
        return ratio(self.rate, self.history.highest.get("LearningRate", nan))

    @cached_property
    def rate_mean(self) -> float:
        """Mean learning rate over its maximum: a half for cosine and linear decay, a third for exponential decay."""
        pool = self.history.pools.get("rate")
        return ratio(pool[1] / pool[0], self.history.highest.get("LearningRate", nan)) if pool else nan

    @cached_property
    def rate_life(self) -> float:
        """Steps in which the learning rate halves, where it falls by the same factor at every step; else NaN."""
        past = [(seen.step, v) for seen in self.late[-8:] if (v := seen.get("LearningRate")) > 0]
        falls = [math.log(a / b) / (j - i) for (i, a), (j, b) in pairwise(past) if j > i]
        if len(falls) < 3 or min(falls) <= 0 or max(falls) > 1.05 * min(falls):
            return nan
        return math.log(2) / median(falls)

    @cached_property
    def rate_rises(self) -> bool:
        """Warm-up is not over."""
        past = [v for seen in self.late[-12:] if (v := seen.get("LearningRate")) == v]
        return bool(past) and past[-1] > 1.02 * past[0]

    def name_activation(self, signal: str) -> str:
        """The module that a signal ending in ``_where`` points at."""
        names, place = self.facts.names("activations"), self.last(SIGNAL + signal)
        return names[int(place)] if place == place and 0 <= place < len(names) else "a layer"

    @cached_property
    def weight_fall(self) -> float:
        return ratio(self.last("ParamNorm"), self.norm0)

    @cached_property
    def norm0(self) -> float:
        return self.history.first.get("ParamNorm", nan)

    @cached_property
    def travelled(self) -> float:
        """Distance from the start over the length of the parameters there."""
        return ratio(self.last("Distance"), self.norm0)

    @cached_property
    def decay_share(self) -> float:
        """Part of a step (or of the gradient) that is weight decay alone."""
        decay = self.facts.weight_decay
        if not decay > 0:
            return nan
        if self.facts.decoupled:
            shares = [ratio(o.get("LearningRate") * o.get("ParamNorm"), o.get("UpdateSize")) for o in self.late]
            return decay * median([share for share in shares if share == share][-RECENT:])
        return decay * median(self.ratios("ParamNorm", "GradNormClipped"))

    @cached_property
    def amplification(self) -> float:
        """Length of a step over lr times the gradient: 1 for plain SGD, up to 1 / (1 - momentum)."""
        if self.facts.optimizer != "SGD":
            return nan
        longer = [ratio(o.get("UpdateSize"), o.get("LearningRate") * o.get("GradNormClipped")) for o in self.late]
        return median([value for value in longer if value == value][-RECENT:])

    @cached_property
    def steps_to_go_min(self) -> float:
        return min((v for seen in self.late if (v := seen.get(SIGNAL + "steps_to_go")) == v), default=nan)

    # ---- noise and curvature ----

    @cached_property
    def noise(self) -> float:
        """Noise scale over the batch size: tr(Sigma) / (B ||g||^2), the square of the norm test."""
        return median(self.values("NormTest")) ** 2

    @cached_property
    def edge(self) -> float:
        """The largest eigenvalue over 2 (1 + momentum) / lr, where plain gradient descent is on the edge."""
        if not self.facts.plain_sgd:
            return nan
        momentum = self.facts.momentum if self.facts.momentum == self.facts.momentum else 0.0
        values = [o.get("HessMaxEV") * o.get("LearningRate") / (2 * (1 + momentum)) for o in self.late]
        return median([v for v in values if v == v][-3:])

    @cached_property
    def alpha(self) -> float:
        return median(self.values("Alpha", 8))

    # ---- layers ----

    def gradient_share(self, names: Iterable[str]) -> float:
        """Share of the squared gradient that belongs to these tensors."""
        rows, chosen = self.stack("GradNorm"), set(names)
        if not len(rows):
            return nan
        squares = np.nan_to_num(rows, nan=0.0, posinf=0.0) ** 2
        own = squares[:, [i for i, layer in enumerate(self.facts.layers) if layer in chosen]].sum(1)
        return median(ratio(float(a), float(b)) for a, b in zip(own, squares.sum(1), strict=True))

    @cached_property
    def weight_scale(self) -> float:
        """Median over the matrices: length of the first weights over that of torch's default initialisation."""
        rows = self.stack("ParamNorm", start=True)
        chosen = [i for i, shape in enumerate(self.facts.shapes) if len(shape) > 1]
        if not len(rows) or not chosen:
            return nan
        return median(float(rows[0][i]) / math.sqrt(self.facts.shapes[i][0] / 3) for i in chosen)

    def stack(self, name: str, start: bool = False) -> np.ndarray:
        """[steps, layers]: the last few vectors of a quantity, or those of the start."""
        rows: Iterable[np.ndarray] = (self.history.first_vectors if start else self.history.vectors).get(name, ())
        width = len(self.facts.layers)
        rows = [row for row in rows if row.size == width]
        return np.array(rows) if rows else np.empty((0, width))

    @cached_property
    def still(self) -> list[str]:
        """Tensors that get a gradient and did not move at any of the last tracked steps, while others did."""
        gradients, updates = self.stack("GradNorm"), self.stack("UpdateSize")
        if len(gradients) < 2 or len(updates) < 2:
            return []
        with np.errstate(invalid="ignore"):
            idle = (gradients > 0).all(0) & (updates == 0).all(0)
            moving = (updates > 0).any()
        return [self.facts.layers[i] for i in np.flatnonzero(idle)] if moving else []

    @cached_property
    def silent(self) -> list[str]:
        """Tensors whose gradient is exactly zero at all of the last tracked steps, while others have one."""
        gradients = self.stack("GradNorm")
        if len(gradients) < 3:
            return []
        zero = (gradients == 0).all(0)
        with np.errstate(invalid="ignore"):
            any_left = (gradients > 0).any()
        return [self.facts.layers[i] for i in np.flatnonzero(zero)] if any_left else []

    @cached_property
    def vanishing(self) -> tuple[float, str]:
        """The smallest over the largest gradient per element (root mean square) of early weights, and whose it is."""
        gradients = self.stack("GradNorm", start=True)
        if not len(gradients):
            return nan, ""
        chosen = [i for i, shape in enumerate(self.facts.shapes) if len(shape) > 1]
        if len(chosen) < 3:
            return nan, ""
        sizes = np.sqrt(np.array([max(1, self.facts.sizes[i]) for i in chosen], dtype=float))
        with np.errstate(all="ignore"):
            typical = np.median(gradients[:, chosen], axis=0) / sizes
        if not np.isfinite(typical).all() or not typical.max() > 0:
            return nan, ""
        least = int(typical[:-1].argmin())
        return float(typical[least] / typical.max()), self.facts.layers[chosen[least]]

"""Features of a run up to one tracked step, each computed when a rule asks for it, once. NaN: not known.

A comparison with NaN is False, so a rule that lacks evidence is silent. ``reading`` looks columns up, ``progress`` has what
the loss says, ``tensors`` what single tensors say; here are steps, noise and curvature.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

from cockpit_core.diagnosis.history import PROBE, SIGNAL
from cockpit_core.diagnosis.limits import limit
from cockpit_core.diagnosis.reading import RECENT, mean, median, nan, ratio
from cockpit_core.diagnosis.validation import Validation
from cockpit_core.foundation.kept import kept

FIRST_PLATEAU = 100  # steps
WARM = 12  # steps: a rate that is higher than so long ago still rises
LINE = PROBE + "line"
TRIED = ("quarter", "whole", "four", "sixteen")

GROWN, FAR_GROWN, YOUNG = 2.7, 4.5, 1000  # times the first length of the weights, if as torch makes them or not; steps


class Trial(NamedTuple):
    """What steps of other lengths take off the loss of their own batch; ``gain``: a whole one, over the loss."""

    gain: float
    quarter: float
    whole: float
    four: float
    sixteen: float


class View(Validation):
    """What a rule sees."""

    # ---- steps ----

    @kept
    def rate(self) -> float:
        return self.last("LearningRate")

    @kept
    def set_rate(self) -> float:
        """As the user set it: the highest value, where a schedule has taken more than half of it away since."""
        highest = self.history.highest.get("LearningRate", nan)
        return highest if self.rate < 0.5 * highest else self.rate

    @kept
    def update(self) -> float:
        """Length of a step over the length of all parameters: typical of the last ones, and of now where few are known."""
        last = self.ratios("UpdateSize", "ParamNorm")
        return min(median(last), last[-1]) if last else nan

    @kept
    def update_max(self) -> float:
        return self.history.highest.get("update", nan)

    @kept
    def has_far_inputs(self) -> bool:
        """A few numbers make nearly all of the inputs' squares, and the rest would do."""
        share, part = self.typical("input_far"), self.typical("input_far_part")
        return 0 < share < 0.1 and part > 0.9 and self.typical("input_rms") * math.sqrt(1 - min(part, 1.0)) < 5

    @kept
    def is_long(self) -> bool:
        """Steps as long as the weights. Longer than all of them: told at once. Half as long: told where little is
        learned."""
        if self.starts_small or self.thrives:
            return False
        rises = not sum(self.finite[-2:]) < 1.8 * self.very_first
        if self.update_max > 4 * limit("update"):
            return True
        again = self.update > limit("update") and self.n >= 4  # not the first steps alone
        if self.update_max > 2 * limit("update") and rises and again:
            return True
        if self.drop != self.drop:  # a loss around zero says nothing about progress
            return self.update_max > limit("update") and self.update > 0.02 and self.t >= 20
        once = self.update_max > limit("update") and self.drop < 0.15 and self.struggles and not self.improves
        return once or (self.update > 0.3 * limit("update") and self.drop < 0.3 and self.t >= 20)

    @property
    def dropout(self) -> float:
        """The largest share of units that a layer drops, by a module or by a function."""
        functions = self.first("graph_dropout")
        return max(self.static("static_dropout"), functions) if functions > 0 else self.static("static_dropout")

    @kept
    def starts_small(self) -> bool:
        """The first weights are far shorter than usual initialisations make them: relative steps are long for that
        reason alone."""
        usual = math.sqrt(sum(shape[0] / 3 for shape in self.facts.shapes if len(shape) > 1))
        return self.norm0 < 0.3 * usual

    @kept
    def clipped(self) -> float:
        """The gradient as the optimizer gets it over that of the backward pass."""
        return median(self.ratios("GradNormClipped", "GradNorm"))

    @kept
    def rate_fall(self) -> float:
        return ratio(self.rate, self.history.highest.get("LearningRate", nan))

    @kept
    def rate_mean(self) -> float:
        """Mean learning rate over its maximum: a half for cosine and linear decay, a third for exponential decay."""
        pool = self.history.pools.get("rate")
        return ratio(pool[1] / pool[0], self.history.highest.get("LearningRate", nan)) if pool else nan

    @kept
    def rate_life(self) -> float:
        """Steps in which the learning rate halves, where it falls by the same factor at every step; else NaN."""
        past = [(seen.step, v) for seen in self.late[-8:] if (v := seen.get("LearningRate")) > 0]
        falls = [math.log(a / b) / (j - i) for (i, a), (j, b) in pairwise(past) if j > i]
        exact = 1.05 if len(falls) >= 3 else 1.002  # two are enough where they are the same
        if len(falls) < 2 or min(falls) <= 0 or max(falls) > exact * min(falls):
            return nan
        return math.log(2) / median(falls)

    @kept
    def final_level(self) -> float:
        """Where the loss will end, as a share of chance, if it goes on to fall as it does and the rate to halve as it does:
        its slope now times life / ln 2 steps."""
        life = self.rate_life
        if life != life:
            return nan  # whatever the losses say
        known = [(float(seen.step), v) for seen in self.late if (v := seen.get(SIGNAL + "recent_loss")) == v
                 and seen.get(SIGNAL + "recent_count") >= 8]  # fmt: skip
        if len(known) < 2:
            half = max(3, self.window)
            parts = [
                [o for o in part if math.isfinite(o.get("Loss"))]
                for part in (self.late[-2 * half : -half], self.late[-half:])
            ]
            known = [(mean(o.step for o in part), mean(o.get("Loss") for o in part)) for part in parts]
        (before, high), (now, low) = known[-2:]
        if not now > before or not low > 0:
            return nan
        return self.level * (1 - max(0.0, high - low) / (now - before) * life / math.log(2) / low)

    @kept
    def rate_rises(self) -> bool:
        """Warm-up is not over. Records may be far apart: what rose long ago does not rise now."""
        known = [(seen.step, rate) for seen in self.late[-12:] if (rate := seen.get("LearningRate")) == rate]
        past = [rate for step, rate in known if step >= self.t - max(WARM, self.t // 4)]
        past = past if len(past) > 1 else [rate for _, rate in known[-2:]]
        return bool(past) and past[-1] > 1.02 * past[0]

    @kept
    def rate_gone(self) -> float:
        """Share of the run so far that was spent at less than a thousandth of the highest learning rate, up to now."""
        since = self.history.rate_gone
        return (self.t - since) / self.t if since >= 0 and self.t > 0 else 0.0

    def name_activation(self, signal: str) -> str:
        """The module that a signal ending in ``_where`` points at."""
        names, place = self.facts.names("activations"), self.last(SIGNAL + signal)
        return names[int(place)] if place == place and 0 <= place < len(names) else "a layer"

    @kept
    def weight_fall(self) -> float:
        return ratio(self.last("ParamNorm"), self.norm0)

    @kept
    def norm0(self) -> float:
        return self.history.first.get("ParamNorm", nan)

    @kept
    def travelled(self) -> float:
        """Distance from the start over the length of the parameters there."""
        return ratio(self.last("Distance"), self.norm0)

    @kept
    def is_far(self) -> bool:
        """The weights have left their start and have grown. Late, and in steps that are still long, half as far is enough."""
        if 3 < self.travelled < math.inf and self.weight_fall > 2:
            return True
        late = self.t >= 150 and self.update > 5e-3
        return late and 1.5 < self.travelled < math.inf and self.weight_fall > 1.5

    @kept
    def is_blown_up(self) -> bool:
        """The run is over, its weights are several times as long as they were made and far from there, and something is left to
        learn. No healthy run gets there in some hundred steps; in longer ones weights grow by themselves, in short steps."""
        # Where weights were begun in a way of one's own, and neither trained before, small nor constant, it takes more.
        times = min(self.travelled, self.weight_fall) if self.travelled < math.inf else nan
        untrained = self.level0 > 0.8 and self.weight_scale > 0.4 and not self.static("static_constant") > 0
        grown = (times > GROWN and self.are_fresh(self.facts.layers)) or (times > FAR_GROWN and untrained)
        left = not self.level < 0.05 and not self.right_now > 0.93 and not self.does_fairly
        # Of texts much is left in any case, and what a cut has left of a network must grow.
        left = left and not (self.of_texts and not self.weight_fall > 3) and not self.unreached
        # Dropout leaves much of the loss. The first steps of RMSprop alone may take weights so far.
        left = left and not (self.dropout >= 0.3 and self.level < 0.4)
        left = left and not (self.update_max < 0.3 and self.level < 0.2)
        return self.finished and grown and left and (self.t <= YOUNG or self.update > 5e-3)

    @kept
    def decay_share(self) -> float:
        """Part of a step (or of the gradient) that is weight decay alone."""
        decay = self.facts.weight_decay
        if not decay > 0:
            return nan
        if self.facts.decoupled:
            share = self.last_of(lambda o: ratio(o.get("LearningRate") * o.get("ParamNorm"), o.get("UpdateSize")))
            return decay * median(share)
        return decay * median(self.ratios("ParamNorm", "GradNormClipped"))

    @kept
    def amplification(self) -> float:
        """Length of a step over lr times the gradient: 1 for plain SGD, up to 1 / (1 - momentum)."""
        if self.facts.optimizer != "SGD":
            return nan
        return median(
            self.last_of(lambda o: ratio(o.get("UpdateSize"), o.get("LearningRate") * o.get("GradNormClipped")))
        )

    @kept
    def steps_to_go_min(self) -> float:
        """L / (slope x length of a step), the least of the last ones. Where the slope along the steps was not measured:
        what it would be if each followed its gradient exactly, which no step can beat."""
        measured = [value for value in self.column(SIGNAL + "steps_to_go") if value == value]
        if measured:
            return min(measured)
        bounds = [ratio(abs(o.get("Loss")), o.get("GradNorm") * o.get("UpdateSize")) for o in self.late]
        return min((v for v in bounds if v == v), default=nan)

    # ---- probes: what trial steps and evaluation would give ----

    @kept
    def trials(self) -> list[Trial]:
        """The last probes along the line of a step."""
        trials: list[Trial] = []
        if "line" not in self.history.probes:
            return trials
        for seen in self.late:
            if LINE not in seen.scalars:
                continue
            loss = seen.get(PROBE + "loss")
            if seen.get(LINE) == 1 and math.isfinite(loss) and loss:
                quarter, whole, four, sixteen = (loss - seen.get(PROBE + name) for name in TRIED)
                left = abs(loss - self.floor) or abs(loss)
                trials.append(Trial(whole / left, quarter, whole, four, sixteen))
        return trials[-RECENT:]

    @kept
    def gain_by_step(self) -> float:
        """Share of a batch's loss that one step takes off it."""
        return median(trial.gain for trial in self.trials)

    @kept
    def straight(self) -> float:
        """What a step 16 times as long would take off its batch's loss, over 16 times what the step does: 1 = the loss is a
        straight line so far, and the steps could be many times longer."""
        ratios = [trial.sixteen / (16 * trial.whole) if trial.whole > 0 else -1.0 for trial in self.trials]
        return median(ratios) if len(ratios) >= 2 else nan

    @kept
    def transfer(self) -> float:
        """How much of what a step takes off the loss of its own batch is seen in the loss of the batches that follow: the pace
        at which the loss falls, over that gain. 1 = all of it; 0 = steps help their own samples and no others."""
        return ratio(self.fall[1], self.t * self.gain_by_step) if self.gain_by_step > 0 and self.t > 0 else nan

    @kept
    def transfer_overall(self) -> float:
        """The same over the whole run, where a schedule has ended it: its last steps tell nothing of the others. Counted from
        chance: how a network comes down to it tells nothing either."""
        if not (self.rate_fall < 0.3 and self.gain_by_step > 0 and self.t > 0 and 0 < self.gain < 1):
            return nan
        return ratio(-math.log(1 - self.gain), self.t * self.rate_mean * self.gain_by_step)

    @kept
    def clear_trials(self) -> list[Trial]:
        """Those that show a valley: a quarter of the step goes down, or a whole one up by more than next to nothing."""
        return [trial for trial in self.trials if trial.quarter > 0 or trial.gain < -limit("rise_by_step")]

    @kept
    def bent(self) -> float:
        """The same for a whole step over a quarter of it: 1 = straight, below 0 = the step goes beyond the valley."""
        ratios = [trial.whole / (4 * trial.quarter) if trial.quarter > 0 else -1.0 for trial in self.clear_trials]
        return median(ratios) if len(ratios) >= (2 if self.sparse else 3) else nan

    @kept
    def bent_four(self) -> float:
        """The same for a step four times as long."""
        ratios = [trial.four / (16 * trial.quarter) if trial.quarter > 0 else -1.0 for trial in self.clear_trials]
        return median(ratios) if len(ratios) >= (2 if self.sparse else 3) else nan

    @kept
    def creeps(self) -> bool:
        """Trial steps say so: each takes next to nothing off the loss of its own batch, and 16 times as long ones take 16
        times as much."""
        patient = 1.0 if self.t >= FIRST_PLATEAU else 0.15  # a deep network that finds its way begins like this
        return 0 < self.gain_by_step < patient * limit("gain_by_step") and 0.85 < self.straight < 1.2

    @kept
    def goes_beyond(self) -> bool:
        """Steps are too long by trial steps on the same batch, and nothing is learned. At the edge of stability the
        first holds for good runs too."""
        if self.t < 30 or (self.facts.adaptive and self.update < 1e-3):
            return False
        if 0 < self.vanishing[0] < limit("vanishing") or self.first("output_spread") < 1e-4:
            return False  # where no gradient arrives, biases alone move: their valley is narrow at any rate
        none = self.drop < 0.15 or self.travelled > limit("travelled")  # or a way back to less than there might be
        if self.bent < 0.25 and self.struggles and none and not self.improves:
            return True
        # The step as it is: what it helps does not last, that is all.
        helps = self.bent > 0.5 and (self.gain_by_step > 1e-3 or self.bent > 0.75)
        return self.bent_four < 0 and self.stuck and self.update > 3e-3 and not helps

    @kept
    def eval_level(self) -> float:
        """The loss in evaluation mode, without dropout, over that of chance."""
        if "mode" not in self.history.probes:
            return nan
        known = [v for seen in self.late[-12:] if math.isfinite(v := seen.get(PROBE + "eval"))]
        return ratio(known[-1] if known else nan, self.chance * self.summed * self.undivided)

    # ---- noise and curvature ----

    @kept
    def noise(self) -> float:
        """Noise scale over the batch size: tr(Sigma) / (B ||g||^2), the square of the norm test."""
        return median(self.values("NormTest")) ** 2

    @kept
    def late_noise(self) -> float:
        """The same for the second half of the run, from at least two records: how samples agree at the first step
        says nothing about what is left to learn."""
        shares = [
            o.get("NormTest") ** 2 for o in self.late if 2 * o.step > self.t and o.get("NormTest") == o.get("NormTest")
        ]
        return median(shares) if len(shares) >= 2 else nan

    @kept
    def edge(self) -> float:
        """The largest eigenvalue over 2 (1 + momentum) / lr, where plain gradient descent is on the edge."""
        if not self.facts.plain_sgd or "HessMaxEV" not in self.history.names:
            return nan
        momentum = self.facts.momentum if self.facts.momentum == self.facts.momentum else 0.0
        return median(self.last_of(lambda o: o.get("HessMaxEV") * o.get("LearningRate") / (2 * (1 + momentum)), 3))

    @kept
    def alpha(self) -> float:
        return median(self.values("Alpha", 8))

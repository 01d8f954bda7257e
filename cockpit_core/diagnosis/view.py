"""Features of a run up to one tracked step, each computed when a rule asks for it, once. NaN: not known.

A comparison with NaN is False, so a rule that lacks evidence is silent. ``reading`` looks columns up, ``progress`` has what
the loss says, ``tensors`` what single tensors say; here are steps, noise and curvature.
"""

from __future__ import annotations

import math
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from cockpit_core.diagnosis.history import PROBE, SIGNAL
from cockpit_core.diagnosis.limits import limit
from cockpit_core.diagnosis.reading import RECENT, median, nan, ratio
from cockpit_core.diagnosis.tensors import Tensors

FIRST_PLATEAU = 100  # steps
TRIED = ("quarter", "whole", "four", "sixteen")


class Trial(NamedTuple):
    """What steps of other lengths take off the loss of their own batch; ``gain``: a whole one, over the loss."""

    gain: float
    quarter: float
    whole: float
    four: float
    sixteen: float


class View(Tensors):
    """What a rule sees."""

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
    def is_long(self) -> bool:
        """Steps as long as the weights. Longer than all of them: at once. Half as long: where little is learned by it."""
        if self.starts_small or self.thrives:
            return False
        rises = not sum(self.finite[-2:]) < 1.8 * self.very_first
        if self.update_max > 4 * limit("update"):
            return True
        if (
            self.update_max > 2 * limit("update") and rises and self.update > limit("update")
        ):  # not the first step alone
            return True
        if self.drop != self.drop:  # a loss around zero says nothing of progress
            return self.update_max > limit("update") and self.update > 0.02 and self.t >= 20
        once = self.update_max > limit("update") and self.drop < 0.15 and self.struggles and not self.improves
        return once or (self.update > 0.3 * limit("update") and self.drop < 0.3 and self.t >= 20)

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
            share = self.last_of(lambda o: ratio(o.get("LearningRate") * o.get("ParamNorm"), o.get("UpdateSize")))
            return decay * median(share)
        return decay * median(self.ratios("ParamNorm", "GradNormClipped"))

    @cached_property
    def amplification(self) -> float:
        """Length of a step over lr times the gradient: 1 for plain SGD, up to 1 / (1 - momentum)."""
        if self.facts.optimizer != "SGD":
            return nan
        return median(
            self.last_of(lambda o: ratio(o.get("UpdateSize"), o.get("LearningRate") * o.get("GradNormClipped")))
        )

    @cached_property
    def steps_to_go_min(self) -> float:
        """L / (slope x length of a step), the least of the last ones. Where the slope along the steps was not measured:
        what it would be if each followed its gradient exactly, which no step can beat."""
        measured = [v for seen in self.late if (v := seen.get(SIGNAL + "steps_to_go")) == v]
        if measured:
            return min(measured)
        bounds = [ratio(abs(o.get("Loss")), o.get("GradNorm") * o.get("UpdateSize")) for o in self.late]
        return min((v for v in bounds if v == v), default=nan)

    # ---- probes: what trial steps and evaluation would give ----

    @cached_property
    def trials(self) -> list[Trial]:
        """The last probes along the line of a step."""
        found: list[Trial] = []
        for seen in self.late if "line" in self.history.probes else ():
            loss = seen.get(PROBE + "loss")
            if seen.get(PROBE + "line") == 1 and math.isfinite(loss) and loss:
                quarter, whole, four, sixteen = (loss - seen.get(PROBE + name) for name in TRIED)
                found.append(Trial(whole / abs(loss), quarter, whole, four, sixteen))
        return found[-RECENT:]

    @cached_property
    def gain_by_step(self) -> float:
        """Share of a batch's loss that one step takes off it."""
        return median(trial.gain for trial in self.trials)

    @cached_property
    def straight(self) -> float:
        """What a step 16 times as long would take off its batch's loss, over 16 times what the step does: 1 = the loss is a
        straight line so far, and the steps could be many times longer."""
        found = [trial.sixteen / (16 * trial.whole) if trial.whole > 0 else -1.0 for trial in self.trials]
        return median(found) if len(found) >= 2 else nan

    @cached_property
    def bent(self) -> float:
        """The same of a whole step over a quarter of it: 1 = straight, below 0 = the step goes beyond the valley."""
        found = [trial.whole / (4 * trial.quarter) if trial.quarter > 0 else -1.0 for trial in self.trials]
        return median(found) if len(found) >= (2 if self.sparse else 3) else nan

    @cached_property
    def bent_four(self) -> float:
        """The same of a step four times as long."""
        found = [trial.four / (16 * trial.quarter) if trial.quarter > 0 else -1.0 for trial in self.trials]
        return median(found) if len(found) >= (2 if self.sparse else 3) else nan

    @cached_property
    def creeps(self) -> bool:
        """Trial steps say so: each takes next to nothing off the loss of its own batch, and 16 times as long ones take 16
        times as much."""
        patient = 1.0 if self.t >= FIRST_PLATEAU else 0.15  # a deep network that finds its way begins like this
        return 0 < self.gain_by_step < patient * limit("gain_by_step") and 0.85 < self.straight < 1.2

    @cached_property
    def goes_beyond(self) -> bool:
        """By trial steps on the same batch, where nothing comes of them: at the edge of stability good runs do so too."""
        if self.t < 30 or (self.facts.adaptive and self.update < 1e-3):
            return False
        if 0 < self.vanishing[0] < limit("vanishing") or self.first("output_spread") < 1e-4:
            return False  # where no gradient arrives, biases alone move: their valley is narrow at any rate
        none = self.drop < 0.15 or self.travelled > limit("travelled")  # or a way back to less than there might be
        if self.bent < 0.25 and self.struggles and none and not self.improves:
            return True
        return self.bent_four < 0 and self.stuck and self.update > 3e-3

    @cached_property
    def eval_level(self) -> float:
        """The loss in evaluation mode, without dropout, over that of chance."""
        if "mode" not in self.history.probes:
            return nan
        known = [v for seen in self.late[-12:] if math.isfinite(v := seen.get(PROBE + "eval"))]
        return ratio(median(known), self.chance * self.summed * self.undivided)

    # ---- noise and curvature ----

    @cached_property
    def noise(self) -> float:
        """Noise scale over the batch size: tr(Sigma) / (B ||g||^2), the square of the norm test."""
        return median(self.values("NormTest")) ** 2

    @cached_property
    def late_noise(self) -> float:
        """The same of the second half of the run, from two records at least: how samples agree at a first step says nothing
        of what is left to learn."""
        found = [
            o.get("NormTest") ** 2 for o in self.late if 2 * o.step > self.t and o.get("NormTest") == o.get("NormTest")
        ]
        return median(found) if len(found) >= 2 else nan

    @cached_property
    def edge(self) -> float:
        """The largest eigenvalue over 2 (1 + momentum) / lr, where plain gradient descent is on the edge."""
        if not self.facts.plain_sgd:
            return nan
        momentum = self.facts.momentum if self.facts.momentum == self.facts.momentum else 0.0
        return median(self.last_of(lambda o: o.get("HessMaxEV") * o.get("LearningRate") / (2 * (1 + momentum)), 3))

    @cached_property
    def alpha(self) -> float:
        return median(self.values("Alpha", 8))

"""Thresholds of published tools, read from their descriptions and tried on the same logs. The code is ours.

AutoTrainer: Zhang et al., ICSE 2021, and the default parameters of its repository. UMLAUT: Schoop et al., CHI 2021, and the
bounds of its repository. SageMaker Debugger: its built-in rules, defaults as far as we know them. DeepDiagnosis: Wardat et
al., ICSE 2022, its conditions; where the paper gives no number, that of SageMaker.
They were made for epochs of Keras programs: a tenth of a run stands for an epoch here. Where our log lacks what a tool reads
(single zeros of a gradient, validation at every epoch), the nearest column stands in, or the check is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from cockpit_core.diagnosis.history import Observation
from cockpit_core.foundation.records import Header

EPOCHS = 10
HIGH_RATE = ("learning_rate_too_high", "momentum_too_high", "init_too_large", "loss_summed", "not_finite")
SLOW = ("learning_rate_too_low", "schedule_too_fast", "clipping_too_hard", "not_learning", "adam_eps_too_large")
MEANS = {  # what a tool's words would have to mean to be right
    "vanishing gradient": ("vanishing_gradients", "init_too_small"),
    "exploding gradient": HIGH_RATE,
    "dying ReLU": ("dead_units",),
    "oscillating loss": ("learning_rate_too_high", "batch_too_small", "momentum_too_high"),
    "slow convergence": SLOW,
    "input range": ("inputs_not_scaled", "input_outliers"),
    "learning rate high": ("learning_rate_too_high",),
    "learning rate low": ("learning_rate_too_low", "schedule_too_fast"),
    "missing activation": ("missing_nonlinearity",),
    "validation too good": ("target_in_inputs",),
    "not a number": HIGH_RATE,
    "loss not decreasing": (*SLOW, *HIGH_RATE),
    "accuracy not increasing": (*SLOW, *HIGH_RATE),
    "weight update ratio": ("learning_rate_too_high", "learning_rate_too_low"),
    "unchanged weights": ("parameters_not_optimized", "graph_detached", "optimizer_holds_others", "dead_units"),
    "saturated activation": ("saturated_units", "inputs_not_scaled", "init_too_large"),
}


@dataclass
class Trace:
    """What the tools look at."""

    steps: list[Observation]
    header: Header
    static: dict[str, float]
    inputs: tuple[float, float]
    error: float
    classes: bool

    def column(self, name: str) -> list[float]:
        return [value for seen in self.steps if (value := seen.get(name)) == value]

    def weights(self, name: str) -> np.ndarray:
        """[steps, matrices]: one norm per weight matrix."""
        chosen = [i for i, layer in enumerate(self.header.layers) if len(layer.shape) > 1]
        rows = [seen.layers[name][chosen] for seen in self.steps if name in seen.layers]
        return np.array(rows) if rows else np.empty((0, len(chosen)))

    @property
    def epochs(self) -> list[float]:
        """Mean accuracy of each tenth of the run."""
        hits = self.column("signal/accuracy")
        return [float(np.mean(part)) for part in np.array_split(hits, min(EPOCHS, len(hits)))] if hits else []

    @property
    def broken(self) -> bool:
        return any(not math.isfinite(seen.get("Loss")) for seen in self.steps if "Loss" in seen.scalars)


def autotrainer(trace: Trace) -> list[str]:
    if trace.broken or any(loss >= 1e5 for loss in trace.column("Loss")):
        return ["exploding gradient"]
    accuracy, gradients = trace.epochs, trace.weights("GradNorm")
    if not accuracy or not len(gradients) or gradients.shape[1] < 2:
        return []
    rises = np.diff(accuracy)
    slow = len(rises) > 0 and rises.max() < 0.01
    found = []
    if max(accuracy) < 0.6 or slow:
        with np.errstate(all="ignore"):
            rate = gradients[:, 0] / gradients[:, -1]
        if max(trace.column("signal/dead"), default=0.0) >= 0.7:
            found.append("dying ReLU")
        elif (rate > 70).any():
            found.append("exploding gradient")
        elif ((rate < 1e-3) & (gradients[:, 0] < 1e-4)).any():
            found.append("vanishing gradient")
        elif slow:
            found.append("slow convergence")
    elif count_swings(accuracy, 0.03) >= 0.2 * len(accuracy):
        found.append("oscillating loss")
    return found


def count_swings(values: list[float], least: float) -> int:
    """Pairs of a local maximum and a local minimum that differ by at least so much."""
    inner = range(1, len(values) - 1)
    highs = [values[i] for i in inner if values[i] >= max(values[i - 1], values[i + 1])]
    lows = [values[i] for i in inner if values[i] <= min(values[i - 1], values[i + 1])]
    return sum(high - low >= least for high, low in zip(highs, lows, strict=False))


def umlaut(trace: Trace) -> list[str]:
    found = []
    if trace.broken:
        found.append("not a number")
    if trace.inputs[0] < -1 or trace.inputs[1] > 1:
        found.append("input range")
    rates = trace.column("LearningRate")
    if max(rates, default=0.0) > 0.01:
        found.append("learning rate high")
    elif min(rates, default=1.0) < 1e-7:
        found.append("learning rate low")
    if trace.static.get("static_linear_pairs", 0) > 0:
        found.append("missing activation")
    if trace.classes and trace.error < 0.05:
        found.append("validation too good")
    return found


def stalls(losses: list[float], back: int) -> bool:
    """SageMaker: after so many records the loss has to be 0.1 % lower, at every look."""
    looks = losses[::back]
    return any(now > 0.999 * before for before, now in pairwise(looks))


def sagemaker(trace: Trace) -> list[str]:
    found = []
    if trace.broken:
        found.append("not a number")
    gradients, sizes = trace.weights("GradNorm"), [math.prod(a.shape) for a in trace.header.layers if len(a.shape) > 1]
    if len(gradients) and (gradients / np.sqrt(sizes) < 1e-7).any():
        found.append("vanishing gradient")
    if max(trace.column("signal/dead"), default=0.0) > 0.5:
        found.append("dying ReLU")
    updates, lengths = trace.weights("UpdateSize"), trace.weights("ParamNorm")
    if len(updates) and updates.shape == lengths.shape:
        with np.errstate(all="ignore"):
            ratio = updates / lengths
        if (ratio > 10).any() or ((ratio < 1e-8) & (ratio > 0)).any():
            found.append("weight update ratio")
    if len(updates) and (updates == 0).all(0).any():
        found.append("unchanged weights")
    if max(trace.column("signal/saturated"), default=0.0) > 0.5:
        found.append("saturated activation")
    if stalls(trace.column("Loss"), 2):  # ten steps, of which every fifth is in the log
        found.append("loss not decreasing")
    return found


def deepdiagnosis(trace: Trace) -> list[str]:
    if trace.broken:
        return ["not a number"]
    found = [name for name in sagemaker(trace) if name not in ("loss not decreasing", "weight update ratio")]
    losses = trace.column("Loss")
    means = [float(np.mean(part)) for part in np.array_split(losses, min(EPOCHS, len(losses)))] if losses else []
    if len(means) > 5 and min(means[-5:]) >= means[-6]:
        found.append("loss not decreasing")
    accuracy = trace.epochs
    if len(accuracy) > 5 and max(accuracy[-5:]) <= accuracy[-6]:
        found.append("accuracy not increasing")
    return found


TOOLS: dict[str, Callable[[Trace], list[str]]] = {
    "AutoTrainer": autotrainer,
    "DeepDiagnosis": deepdiagnosis,
    "UMLAUT": umlaut,
    "SageMaker": sagemaker,
}

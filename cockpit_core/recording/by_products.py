"""What comes with every tracked step: learning rates, the gradient as the optimizer gets it, the samples with the
largest gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from cockpit_core.engine.step import StepState
from cockpit_core.quantities.norms import ask_norms, combine

TOP_SAMPLES = 5


def read_rates(optimizers: Iterable[torch.optim.Optimizer]) -> tuple[float, ...]:
    """The learning rates of all groups, in order."""
    return tuple(float(g["lr"]) for optimizer in optimizers for g in optimizer.param_groups if "lr" in g)


def name_rates(rates: Sequence[float]) -> dict[str, float]:
    return {"LearningRate" if index == 0 else f"LearningRate/{index}": rate for index, rate in enumerate(rates)}


def ask_clipped(
    state: StepState, parameters: Mapping[str, Tensor], is_unchanged: Callable[[str], bool]
) -> Callable[[], dict[str, float]]:
    """The norm of ``p.grad`` as the optimizer gets it, to be read later. Where nobody wrote into it since the backward
    pass, it is known."""
    known = {
        n: norm
        for n, norm in state.gradient_norms.items()
        if is_unchanged(n) and state.before.get(n) is None and state.loss_scale == 1
    }
    gradients = {n: p.grad for n, p in parameters.items() if p.grad is not None}
    rest = {n: g for n, g in gradients.items() if n not in known and not g.is_sparse}
    others = ask_norms(rest, state.transfer)
    return lambda: {"GradNormClipped": combine(known | others())}


def find_top_samples(norms: Mapping[str, np.ndarray]) -> tuple[list[int], dict[str, float]]:
    """The samples with the longest gradients, longest first, and the length of the longest. One that is not a number
    counts as longest."""
    if not norms:
        return [], {}
    first, *others = norms.values()
    total = sum(others, first)
    order = total.argsort(kind="stable")[::-1][:TOP_SAMPLES].tolist()
    longest = float(total[order[0]])
    return order, {"TopSampleNorm": longest if math.isnan(longest) else math.sqrt(max(longest, 0.0))}

"""Looking up the Gram matrix of individual gradients, with the reason where there is none."""

from __future__ import annotations

import torch
from torch import Tensor

from cockpit_core.quantities.base import NoValue, Statistics

SAMPLES = 16
"""How many samples of the batch are compared by default, 120 pairs: gradients of convolutions and tokens are formed
for them once more."""


def find_gram(statistics: Statistics) -> Tensor:
    """``K_nm = g_n . g_m`` of the whole network [B, B], finite and not all zero."""
    K = None if statistics.gram is None else statistics.gram.total
    if K is None:
        several = "the samples of the batch are on several processes, and their gradients are not sent around"
        known = several if statistics.norms else "no layer has individual gradients"
        raise NoValue(statistics.reason("individual", known))
    if len(K) < 2:
        raise NoValue("a batch of one sample has no pairs")
    if not bool(torch.isfinite(K).all()):
        raise NoValue("a gradient is not finite")
    if not bool((K.diagonal() > 0).any()):
        raise NoValue("the gradient is zero")
    return K


def describe_samples(statistics: Statistics) -> str:
    """ "" where the whole batch was looked at."""
    gram, B = statistics.gram, statistics.batch_size
    count = 0 if gram is None or gram.total is None else len(gram.total)
    return "" if count == B else f"{count} of {B} samples"


def check_samples(samples: int | None) -> int | None:
    if samples is not None and (not isinstance(samples, int) or isinstance(samples, bool) or samples < 2):
        raise ValueError(f"samples is a whole number of at least 2, or None for the whole batch; got {samples!r}")
    return samples


def find_cosines(K: Tensor) -> Tensor:
    """[B, B]; samples without a gradient are left out."""
    there = K.diagonal() > 0
    K = K[there][:, there]
    lengths = K.diagonal().sqrt()
    return K / lengths[:, None] / lengths[None, :]

"""The class of each sample, where the loss was given classes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


def find_labels(args: tuple, kwargs: dict, samples: int) -> Tensor | None:
    """The classes that a loss was given: one whole number per sample."""
    values = [*args[1:], *(kwargs[key] for key in ("target", "labels") if key in kwargs)]
    for value in values:
        if isinstance(value, Tensor) and value.shape == (samples,) and not value.is_floating_point():
            return value.detach() if value.dtype != torch.bool and not value.is_complex() else None
    return None


def labels_of_graph(nodes: Iterable[Any], samples: int) -> Tensor | None:
    """The same where the loss was a function: nodes of cross entropy keep their targets."""
    for node in nodes:
        target = getattr(node, "_saved_target", None) if node.name().startswith("NllLoss") else None
        if isinstance(target, Tensor) and target.shape == (samples,):
            return target.detach()
    return None

"""Individual losses that the user hands over, for a loss whose graph does not tell them."""

from __future__ import annotations

import torch
from torch import Tensor

from cockpit_core.engine.loss.differentiated import Given
from cockpit_core.engine.loss.graph import GIVEN, mark
from cockpit_core.engine.loss.individual import NoIndividualLosses, check_sum


def attach_function_loss(loss: Tensor, individual: Tensor | None) -> None:
    """These are the individual losses of this loss, wherever it is differentiated. A wrong shape is the caller's
    mistake and raises at once."""
    if not isinstance(loss, Tensor) or loss.dim() != 0:
        raise ValueError("run.backward takes the scalar that you would call backward() on")
    if individual is None:
        return
    if individual.dim() != 1:
        raise ValueError(f"individual_losses must be one number per sample, got shape {tuple(individual.shape)}")
    if loss.requires_grad:
        mark(loss, GIVEN, Given(individual.detach(), loss.detach()))


def scale_losses(individual: Tensor, value: Tensor, B: int) -> Tensor:
    """A mean stays, a sum is multiplied by B; anything else is not what the user differentiates."""
    if len(individual) != B:
        raise NoIndividualLosses(f"{len(individual)} individual losses for {B} samples")
    if not bool(torch.isfinite(value)):
        return individual
    for losses in (individual, individual * B):
        try:
            check_sum(losses.to(value.dtype), float(value))  # models may compute their loss in a lower precision
            return losses
        except NoIndividualLosses:
            continue
    raise NoIndividualLosses(
        f"individual_losses average to {float(individual.mean()):.6g}, but the loss is {float(value):.6g}"
    )

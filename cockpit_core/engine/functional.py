"""Losses that are not modules: the user hands us the scalar, and the individual losses if there are any."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cockpit_core.engine.losses import NoIndividualLosses, check_sum

if TYPE_CHECKING:
    from cockpit_core.run import Run


def attach_function_loss(run: Run, loss: Tensor, individual: Tensor | None) -> None:
    """Listen to this loss's backward pass. The wrong shape is the caller's mistake and is said at once."""
    if not isinstance(loss, Tensor) or loss.dim() != 0:
        raise ValueError("run.backward takes the scalar that you would call backward() on")
    if individual is not None:
        individual = individual.detach()
        if individual.dim() != 1:
            raise ValueError(f"individual_losses must be one number per sample, got shape {tuple(individual.shape)}")
    if loss.requires_grad:
        origin = run.engine.find_origin(None if individual is None else len(individual))
        loss.register_hook(partial(on_function_loss, run, origin, loss.detach(), individual))
        run.engine.look_for_broadcasts(loss.grad_fn, origin)
    _measure_curvature(run, loss)


def _measure_curvature(run: Run, loss: Tensor) -> None:
    """Here rather than in the hook, because the hook must not hold its own tensor."""
    engine = run.engine
    if engine.step.plan.curvature_kinds and not engine.step.passes and loss.requires_grad:
        with run.guard("curvature"):
            engine.curvature.measure_function(engine, engine.forward_size or 0, loss)


def on_function_loss(
    run: Run, origin: tuple[int, int], value: Tensor, individual: Tensor | None, factor: Tensor
) -> None:
    engine = run.engine
    if engine.muted:
        return
    with run.guard("loss hook"):
        engine.noticed_loss(value, factor)
        if not engine.step.plan.active or engine.is_elsewhere():
            return
        found = engine._open_pass(origin, None if individual is None else len(individual))
        factor = factor / engine.step.loss_scale
        found.loss += float(value * factor)
        if individual is None:
            found.no_losses = "individual losses were not given: call run.backward(loss, individual_losses=...)"
            return
        try:
            losses = scale_losses(individual, value, origin[1] or found.batch_size) * factor
            found.add_losses(origin[0], losses)
        except NoIndividualLosses as reason:
            found.no_losses = str(reason)


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

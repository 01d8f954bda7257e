"""Individual losses of torch's loss modules: scaled so that their mean is the scalar that the user differentiates."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from cockpit_core.foundation.faults import text_of
from cockpit_core.foundation.ungraded import ungraded
from cockpit_core.layers.module_state import LossAgain


class NoIndividualLosses(Exception):
    """The message says why, and what to do."""


REMEDY = "call run.backward(loss, individual_losses=...) instead of loss.backward()"


@ungraded
def individual_losses(
    again: LossAgain, args: tuple[Any, ...], kwargs: dict[str, Any], B: int, batch_dim: int, order: Tensor | None
) -> Tensor:
    """``l_n`` [B] with ``mean(l_n) = L``, the module's own value; NoIndividualLosses where they cannot be had. ``order``: the
    sample of each row, where they are in an unusual order."""
    module = again.module
    reduction = getattr(module, "reduction", None)
    name = type(module).__name__
    if reduction is None:
        raise NoIndividualLosses(f"{name} has no attribute 'reduction', so its individual losses are unknown; {REMEDY}")
    raw = evaluate_unreduced(again, args, kwargs)
    if isinstance(module, nn.CTCLoss) and reduction == "mean":
        lengths = kwargs.get("target_lengths", args[3] if len(args) > 3 else None)
        raw = raw / torch.as_tensor(lengths, device=raw.device).clamp(min=1)
    per_sample = sum_per_sample(raw.detach(), B, batch_dim, name, order)
    if reduction == "sum":
        return per_sample * B
    if reduction == "batchmean":
        return per_sample * (B / len(args[0]))
    count = denominator(module, args, kwargs, raw)
    # As a tensor divides: the reciprocal first. Mostly there are as many targets as samples.
    factor = B / count if isinstance(count, Tensor) or not count else (1.0 / count) * B
    return per_sample if isinstance(factor, float) and factor == 1 else per_sample * factor


def evaluate_unreduced(again: LossAgain, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """The module's forward with reduction="none" for a moment, without its hooks."""
    module = again.module
    try:
        raw = again.forward(*(widen(value) for value in args), changed={"reduction": "none"}, **kwargs)
    except Exception as error:
        raise NoIndividualLosses(
            f"{type(module).__name__} failed with reduction='none': {text_of(error)}; {REMEDY}"
        ) from error
    if not isinstance(raw, Tensor) or raw.dim() == 0:
        raise NoIndividualLosses(f"{type(module).__name__} ignores reduction='none'; {REMEDY}")
    return raw


def widen(value: Any) -> Any:
    """Under autocast the loss computes in float32, whatever the network's output is."""
    half = isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16)
    return value.float() if half else value


def denominator(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], raw: Tensor) -> float | Tensor:
    """What a mean divides by: the number of elements, or for class indices the sum of the weights of valid targets."""
    if isinstance(module, (nn.CrossEntropyLoss, nn.NLLLoss)):
        target = kwargs.get("target", args[1] if len(args) > 1 else None)
        if target is not None and not torch.is_floating_point(target):
            if module.weight is None and target.is_cpu:
                return float((target.detach().numpy() != module.ignore_index).tobytes().count(1))
            valid = target != module.ignore_index
            if module.weight is None:
                return valid.sum().double()
            return (module.weight[target.clamp(0, len(module.weight) - 1)] * valid).sum().double()
        return float(target.numel() / target.shape[1]) if target is not None and target.dim() > 1 else 1.0
    return float(raw.numel())


def sum_per_sample(raw: Tensor, B: int, batch_dim: int, name: str, order: Tensor | None = None) -> Tensor:
    """Elements of one sample (outputs, pixels, tokens) belong together, even where the loop flattened them."""
    if order is not None and len(raw) == len(order):
        return raw.new_zeros(B).index_add_(0, order, raw.reshape(len(raw), -1).sum(1))
    if raw.dim() == 1 and len(raw) == B:
        return raw
    if raw.dim() > batch_dim and raw.shape[batch_dim] == B:
        return raw.movedim(batch_dim, 0).reshape(B, -1).sum(1)
    if raw.shape[0] == B:
        return raw.reshape(B, -1).sum(1)
    if raw.shape[0] and raw.shape[0] % B == 0:
        if batch_dim == 0:
            return raw.reshape(B, -1).sum(1)
        return raw.reshape(-1, B, *raw.shape[1:]).movedim(1, 0).reshape(B, -1).sum(1)
    raise NoIndividualLosses(
        f"{name} gives losses of shape {tuple(raw.shape)} for {B} samples; pass batch_dim=, or {REMEDY}"
    )


def is_one(factor: Tensor) -> bool:
    """Asked of a number that is here only: nobody waits for it."""
    if not factor.is_cpu or factor.dim() or factor.dtype not in (torch.float32, torch.float64):
        return False
    return bool(factor.detach().numpy() == 1)


def check_sum(losses: Tensor, value: float) -> None:
    """A loss whose parts do not add up to it (a custom one, an unknown weighting) must not be guessed."""
    mean, size = torch.stack([losses.mean(), losses.abs().mean()]).tolist()
    problem = describe_sum(mean, size, value, losses.dtype)
    if problem:
        raise NoIndividualLosses(problem)


def describe_sum(mean: float, size: float, value: float, dtype: torch.dtype) -> str:
    """What is wrong with individual losses of this mean, and of this size, where their mean is not the loss."""
    allowed = {torch.float64: 1e-8, torch.float32: 1e-4}.get(dtype, 3e-2) * max(size + abs(value), 1e-30)
    if abs(mean - value) <= allowed or math.isnan(mean) or not math.isfinite(value):
        return ""
    return f"the individual losses average to {mean:.6g}, but the loss is {value:.6g}; {REMEDY}"

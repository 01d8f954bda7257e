"""The forward pass once more, whole or for some of the samples, and whether their curvatures add up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from cockpit_core.curvature import NoCurvature, Point
from cockpit_core.engine.forward import SAME, Forward
from cockpit_core.layers.module_state import NotRepeatable


class Parts:
    """Some samples on a graph of their own: their forward pass once more, with the others' outputs as they were.

    Curvatures of such parts add up to the whole if neither the model nor the loss mixes samples; both are looked at.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: Mapping[str, Tensor],
        batch_dim: int,
        outputs: Tensor,
        loss_of: Callable[[Tensor], Tensor],
        forward: Forward | None,
        take: Callable[[Any], Any] = lambda result: result,
    ):
        self.model, self.parameters, self.batch_dim = model, parameters, batch_dim
        self.values, self.loss_of, self.checked = outputs.detach(), loss_of, False
        self.forward, self.take = forward, take

    def __call__(self, lo: int, hi: int) -> Point:
        dim, values, forward = self.batch_dim, self.values, self.forward
        B = 0 if forward is None else forward.batch_size

        def cut(value: Any) -> Any:
            batched = isinstance(value, Tensor) and value.dim() > dim and value.shape[dim] == B
            return value.narrow(dim, lo, hi - lo) if batched else value

        if values.dim() <= dim or values.shape[dim] < hi:
            raise NoCurvature("the outputs are not one per sample")
        outputs = self.take(rerun_model(self.model, cut, forward))
        known = values.narrow(dim, lo, hi - lo)
        if not isinstance(outputs, Tensor) or outputs.shape != known.shape:
            raise NoCurvature("the loss does not take the model's own output, sample by sample")
        if not self.checked:
            if forward is not None and forward.draws:
                raise NoCurvature("the model draws random numbers, and would draw others for a part of the batch")
            refuse_other_outputs(outputs.detach(), known)
            refuse_mixing_loss(self.loss_of, values, dim, lo, hi)
            self.checked = True
        around = values.narrow(dim, 0, lo), values.narrow(dim, hi, values.shape[dim] - hi)

        def loss_of(part: Tensor) -> Tensor:
            return self.loss_of(torch.cat([around[0], part, around[1]], dim))

        return Point(loss_of(outputs), dict(self.parameters), hi - lo, outputs, loss_of, None, dim == 0)


def refuse_other_outputs(outputs: Tensor, known: Tensor) -> None:
    away = float(torch.linalg.vector_norm(outputs - known)) / max(float(torch.linalg.vector_norm(known)), 1e-30)
    if not away <= SAME.get(known.dtype, 5e-2):
        raise NoCurvature("the model mixes samples: a part of them has other outputs")


def refuse_mixing_loss(loss_of: Callable[[Tensor], Tensor], values: Tensor, dim: int, lo: int, hi: int) -> None:
    """The second derivative of the loss by outputs of two different samples must vanish."""
    leaf = values.clone().requires_grad_()
    (slope,) = torch.autograd.grad(loss_of(leaf), leaf, create_graph=True)
    if not slope.requires_grad:
        return
    seed = torch.zeros_like(values)
    seed.narrow(dim, lo, hi - lo).copy_(values.narrow(dim, lo, hi - lo) + 1)
    (bent,) = torch.autograd.grad(slope, leaf, seed, allow_unused=True, materialize_grads=True)
    largest = float(bent.abs().amax())
    bent.narrow(dim, lo, hi - lo).zero_()
    if float(bent.abs().amax()) > 1e-6 * largest:
        raise NoCurvature("the loss mixes samples")


def rerun_model(model: nn.Module, cut: Callable[[Any], Any], forward: Forward | None) -> Any:
    if forward is None:
        raise NoCurvature("the model itself was not called, so its forward pass cannot be repeated")
    args, kwargs = tuple(cut(v) for v in forward.args), {key: cut(v) for key, v in forward.kwargs.items()}
    whole = all(a is b for a, b in zip(args, forward.args, strict=True))
    whole = whole and all(value is forward.kwargs[key] for key, value in kwargs.items())
    try:
        return forward.repeat(model, *(() if whole else (args, kwargs)))
    except NotRepeatable as reason:
        raise NoCurvature(str(reason)) from reason
    except Exception as error:
        taken = "cannot be run again" if whole else "does not take a part of its batch"
        raise NoCurvature(f"the model {taken} ({type(error).__name__}: {error})") from error

"""Second derivatives of activation functions, from what their backward nodes have saved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def _tanh(node: Any) -> Tensor:
    r = node._saved_result.detach()
    return -2 * r * (1 - r * r)


def _sigmoid(node: Any) -> Tensor:
    r = node._saved_result.detach()
    return r * (1 - r) * (1 - 2 * r)


def _exp(node: Any) -> Tensor:
    return node._saved_result.detach()


def _elu(node: Any) -> Tensor:
    """``scale * alpha * input_scale^2 * exp(input_scale x)`` below zero; the in-place version only kept the result."""
    a, scale, inner = node._saved_alpha, node._saved_scale, node._saved_input_scale
    if hasattr(node, "_saved_self"):
        z = node._saved_self.detach()
        return torch.where(z > 0, 0.0, scale * a * inner**2 * torch.exp(inner * z.clamp_max(0)))
    r = node._saved_result.detach()
    return torch.where(r > 0, 0.0, inner**2 * (r + scale * a))


def _from_input(function: Callable[[Any], Callable[[Tensor], Tensor]]) -> Callable[[Any], Tensor]:
    """Twice through autograd on the saved input: each element depends on itself alone, so sums separate."""

    def second(node: Any) -> Tensor:
        with torch.enable_grad():
            z = node._saved_self.detach().requires_grad_()
            (first,) = torch.autograd.grad(function(node)(z).sum(), z, create_graph=True)
            (result,) = torch.autograd.grad(first.sum(), z)
        return result.detach()

    return second


SECOND_DERIVATIVES: dict[str, Callable[[Any], Tensor]] = {
    "Tanh": _tanh,
    "Sigmoid": _sigmoid,
    "Exp": _exp,
    "Elu": _elu,
    "Gelu": _from_input(lambda node: lambda z: F.gelu(z, approximate=node._saved_approximate)),
    "Silu": _from_input(lambda node: F.silu),
    "Mish": _from_input(lambda node: F.mish),
    "Hardswish": _from_input(lambda node: F.hardswish),
    "LogSigmoid": _from_input(lambda node: F.logsigmoid),
    "Softplus": _from_input(lambda node: lambda z: F.softplus(z, node._saved_beta, node._saved_threshold)),
    "Sin": _from_input(lambda node: torch.sin),
    "Cos": _from_input(lambda node: torch.cos),
    "Pow": _from_input(lambda node: lambda z: z.pow(node._saved_exponent)),
}

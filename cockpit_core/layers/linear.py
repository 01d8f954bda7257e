"""Linear with any number of leading dimensions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cockpit_core.layers.contribution import Contribution, Outer, Positions, Rows
from cockpit_core.layers.registry import Call, collapse_positions, foreign_rule, match_dtype, rule, samples_first


@rule(nn.Linear, nn.modules.linear.NonDynamicallyQuantizableLinear)
def linear(call: Call, b: Tensor, scale: float) -> dict[str, Contribution]:
    """``g_n = sum_s b_{n,s} a_{n,s}^T`` for the weight [out, in], ``sum_s b_{n,s}`` for the bias [out]."""
    a, b = read_sides(call, b)
    return as_parts(call.module, b, (b, a), scale)


@foreign_rule("transformers.pytorch_utils.Conv1D")
def turned_linear(call: Call, b: Tensor, scale: float) -> dict[str, Contribution]:
    """The same with a weight [in, out], as in GPT-2."""
    a, b = read_sides(call, b)
    return as_parts(call.module, b, (a, b), scale)


def read_sides(call: Call, b: Tensor) -> tuple[Tensor, Tensor]:
    """What the layer was given and the gradient of what it gave: [B, features], or [B, S, features] with several
    positions."""
    weight: nn.Parameter = call.module.weight  # type: ignore[assignment]
    a = match_dtype(samples_first(call.input.to(b.dtype), call, features=1), weight)
    b = match_dtype(samples_first(b, call, features=1), weight)
    if a.dim() == b.dim() == 2:
        return a, b
    return collapse_positions(a, features=1), collapse_positions(b, features=1)


def as_parts(module: nn.Module, b: Tensor, sides: tuple[Tensor, Tensor], scale: float) -> dict[str, Contribution]:
    """``sides``: those of the weight, its rows first."""
    left, right = sides
    shape: torch.Size = module.weight.shape  # type: ignore[assignment]
    result: dict[str, Contribution] = {}
    if b.dim() == 2:
        result["weight"], each = Outer(left, right, shape, scale), b
    else:
        single = b.shape[1] == 1
        result["weight"] = (
            Outer(left[:, 0], right[:, 0], shape, scale) if single else Positions(left, right, shape, scale)
        )
        each = b.sum(1)
    if module.bias is not None:
        result["bias"] = Rows(each, module.bias.shape, scale)  # type: ignore[arg-type]
    return result

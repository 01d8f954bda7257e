"""Linear with any number of leading dimensions."""

from __future__ import annotations

from torch import Tensor, nn

from cockpit_core.layers.contribution import Contribution, Outer, Positions, Rows
from cockpit_core.layers.registry import Call, collapse_positions, match_dtype, rule, samples_first


@rule(nn.Linear, nn.modules.linear.NonDynamicallyQuantizableLinear)
def linear(call: Call, b: Tensor, scale: float) -> dict[str, Contribution]:
    """``g_n = sum_s b_{n,s} a_{n,s}^T`` for the weight [out, in], ``sum_s b_{n,s}`` for the bias [out]."""
    module, a = call.module, call.input
    a = collapse_positions(samples_first(a.to(b.dtype), call, features=1), features=1)  # [B, S, in]
    b = collapse_positions(samples_first(b, call, features=1), features=1)  # [B, S, out]
    weight: nn.Parameter = module.weight  # type: ignore[assignment]
    a, b = match_dtype(a, weight), match_dtype(b, weight)
    result: dict[str, Contribution] = {}
    if a.shape[1] == 1:
        result["weight"] = Outer(b[:, 0], a[:, 0], weight.shape, scale)
    else:
        result["weight"] = Positions(b, a, weight.shape, scale)
    if module.bias is not None:
        result["bias"] = Rows(b.sum(1), module.bias.shape, scale)  # type: ignore[arg-type]
    return result

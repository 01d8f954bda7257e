"""Linear with any number of leading dimensions."""

from __future__ import annotations

from torch import Tensor, nn

from cockpit_core.layers.contribution import Contribution, Outer, Positions, Rows
from cockpit_core.layers.registry import Call, collapse_positions, match_dtype, rule, samples_first


@rule(nn.Linear, nn.modules.linear.NonDynamicallyQuantizableLinear)
def linear(call: Call, b: Tensor, scale: float) -> dict[str, Contribution]:
    """``g_n = sum_s b_{n,s} a_{n,s}^T`` for the weight [out, in], ``sum_s b_{n,s}`` for the bias [out]."""
    module, a = call.module, call.input
    a, b = samples_first(a.to(b.dtype), call, features=1), samples_first(b, call, features=1)
    weight: nn.Parameter = module.weight  # type: ignore[assignment]
    a, b = match_dtype(a, weight), match_dtype(b, weight)
    result: dict[str, Contribution] = {}
    if a.dim() == b.dim() == 2:
        result["weight"], each = Outer(b, a, weight.shape, scale), b
    else:
        a, b = collapse_positions(a, features=1), collapse_positions(b, features=1)  # [B, S, in], [B, S, out]
        single = a.shape[1] == 1
        result["weight"] = (
            Outer(b[:, 0], a[:, 0], weight.shape, scale) if single else Positions(b, a, weight.shape, scale)
        )
        each = b.sum(1)
    if module.bias is not None:
        result["bias"] = Rows(each, module.bias.shape, scale)  # type: ignore[arg-type]
    return result

"""Self-attention: its two linear maps have individual gradients like any Linear, once their output gradients are known.

``MultiheadAttention`` never calls its children, so the gradient at the projected queries, keys and values is not seen. It
is found by repeating what lies between the two maps, once for the whole batch and with the random state of the call.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cockpit_core.layers.contribution import Contribution, Positions, Rows
from cockpit_core.layers.fallback import restored_random_state
from cockpit_core.layers.registry import Call, match_dtype

ORDER = ("query", "key", "value", "key_padding_mask", "need_weights", "attn_mask", "average_attn_weights", "is_causal")


def self_attention(call: Call, outputs: dict[int, Tensor], scale: float) -> dict[str, Contribution] | None:
    """Contributions by local parameter name; None where the call is not plain self-attention (the fallback serves)."""
    module: nn.MultiheadAttention = call.module  # type: ignore[assignment]
    given = dict(zip(ORDER, call.inputs, strict=False)) | call.kwargs
    if not is_plain(module, given, call, outputs):
        return None
    swap = not module.batch_first
    x = given["query"].transpose(0, 1) if swap else given["query"]  # [B, S, E]
    b = outputs[0].transpose(0, 1) if swap else outputs[0]
    if len(x) != call.batch_size:
        return None
    x, b = (match_dtype(t, module.in_proj_weight) for t in (x, b))
    with torch.enable_grad():
        projected = F.linear(x, module.in_proj_weight.detach(), detached(module.in_proj_bias)).requires_grad_()
        with restored_random_state(call.random_state):
            joined = attend(module, projected, given.get("attn_mask"), call.training)
        between = b @ module.out_proj.weight.detach()
        (at_projection,) = torch.autograd.grad(joined, projected, between)
    parts: dict[str, Contribution] = {
        "in_proj_weight": Positions(at_projection, x, module.in_proj_weight.shape, scale),
        "out_proj.weight": Positions(b, joined.detach(), module.out_proj.weight.shape, scale),
    }
    if module.in_proj_bias is not None:
        parts["in_proj_bias"] = Rows(at_projection.sum(1), module.in_proj_bias.shape, scale)
        parts["out_proj.bias"] = Rows(b.sum(1), module.out_proj.bias.shape, scale)
    return parts


def is_plain(module: nn.MultiheadAttention, given: dict[str, Any], call: Call, outputs: dict[int, Tensor]) -> bool:
    query = given.get("query")
    same = isinstance(query, Tensor) and all(
        isinstance(given.get(name), Tensor)
        and given[name].data_ptr() == query.data_ptr()
        and given[name].shape == query.shape
        for name in ("key", "value")
    )
    drops = module.dropout > 0 and call.training
    return (
        same
        and query is not None
        and query.dim() == 3
        and module._qkv_same_embed_dim
        and module.bias_k is None
        and not module.add_zero_attn
        and given.get("key_padding_mask") is None
        and set(outputs) == {0}
        and not (drops and given.get("need_weights", True))  # there dropout is drawn in another order
    )


def attend(module: nn.MultiheadAttention, projected: Tensor, mask: Tensor | None, training: bool) -> Tensor:
    """Softmax attention of all heads, joined: [B, S, 3 E] to [B, S, E]."""
    B, S, width = projected.shape
    heads, each = module.num_heads, width // 3 // module.num_heads
    q, k, v = (part.reshape(B, S, heads, each).transpose(1, 2) for part in projected.chunk(3, dim=-1))
    if mask is not None and mask.dtype == torch.bool:  # True means "must not be seen" here
        mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill(mask, float("-inf"))
    if mask is not None and mask.dim() == 3:
        mask = mask.reshape(B, heads, S, S)
    dropout = module.dropout if training else 0.0
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout).transpose(1, 2).reshape(B, S, -1)


def detached(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.detach()

"""Attention: its linear maps have individual gradients like any Linear, once their output gradients are known.

``MultiheadAttention`` never calls its children, so the gradient at the projected queries, keys and values is not seen. It
is found by repeating what lies between the maps, once for the whole batch and with the random state of the call. Queries,
keys and values may be three different sequences.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cockpit_core.layers.contribution import Contribution, Positions, Rows, Stacked
from cockpit_core.layers.random_state import restored
from cockpit_core.layers.registry import Call, match_dtype, rule
from cockpit_core.layers.row_order import by_sample

ORDER = ("query", "key", "value", "key_padding_mask", "need_weights", "attn_mask", "average_attn_weights", "is_causal")
SIDES = ("query", "key", "value")


@rule(nn.MultiheadAttention, repeats=True)
def attention(call: Call, outputs: dict[int, Tensor], scale: float) -> dict[str, Contribution] | None:
    """Contributions by local parameter name; None where the call has no rule (the fallback serves)."""
    module: nn.MultiheadAttention = call.module  # type: ignore[assignment]
    given = dict(zip(ORDER, call.inputs, strict=False)) | call.kwargs
    if not has_rule(module, given, outputs):
        return None
    own, swap = call.own_parameters(), not module.batch_first
    like = own["out_proj.weight"]
    sides = [given[side].transpose(0, 1) if swap else given[side] for side in SIDES]  # [R, S, E] each
    gather = by_sample(call, outputs, len(sides[0]))
    if gather is None or any(len(side) != len(sides[0]) for side in sides):
        return None
    sides = [match_dtype(side, like) for side in sides]
    b = match_dtype(outputs[0].transpose(0, 1) if swap else outputs[0], like)
    same = all(given[side] is given["query"] or is_same(given[side], given["query"]) for side in SIDES)
    packed = same and module._qkv_same_embed_dim  # one product for all three, forth and back
    state = call.random_state if call.training and module.dropout > 0 else None
    with torch.enable_grad():
        projected = project_inputs(module, own, sides, packed=packed)
        with restored(state and state[0]):
            joined, weights = attend(
                module, list(projected[0].chunk(3, -1)) if packed else projected, given, call.training
            )
        ends, seeds = [joined], [b @ like.detach()]
        if 1 in outputs:
            ends, seeds = [joined, weights], [*seeds, match_dtype(outputs[1], like)]  # type: ignore[list-item]
        at_projections = torch.autograd.grad(ends, projected, seeds)
    inputs = [gather(x) for x in (sides[:1] if packed else sides)]
    parts = input_parts(module, [gather(g) for g in at_projections], inputs, split_weights(module, own), scale)
    b = gather(b)
    parts["out_proj.weight"] = Positions(b, gather(joined.detach()), like.shape, scale)
    if module.out_proj.bias is not None:
        parts["out_proj.bias"] = Rows(b.sum(1), module.out_proj.bias.shape, scale)
    return parts


def has_rule(module: nn.MultiheadAttention, given: dict[str, Any], outputs: dict[int, Tensor]) -> bool:
    return (
        all(isinstance(given.get(side), Tensor) and given[side].dim() == 3 for side in SIDES)
        and module.bias_k is None
        and not module.add_zero_attn
        and 0 in outputs
    )


def is_same(one: Tensor, other: Tensor) -> bool:
    return one.data_ptr() == other.data_ptr() and one.shape == other.shape and one.stride() == other.stride()


def split_weights(module: nn.MultiheadAttention, own: dict[str, Tensor]) -> list[Tensor]:
    if module._qkv_same_embed_dim:
        return list(own["in_proj_weight"].detach().chunk(3))
    return [own[f"{side}_proj_weight"].detach() for side in "qkv"]


def split_biases(own: dict[str, Tensor]) -> list[Tensor | None]:
    return list(own["in_proj_bias"].detach().chunk(3)) if "in_proj_bias" in own else [None] * 3


def project_inputs(
    module: nn.MultiheadAttention, own: dict[str, Tensor], sides: list[Tensor], *, packed: bool
) -> list[Tensor]:
    """Queries, keys and values, [R, S, E] each; ``packed``: all three side by side."""
    if packed:
        bias = own["in_proj_bias"].detach() if "in_proj_bias" in own else None
        return [F.linear(sides[0], own["in_proj_weight"].detach(), bias).requires_grad_()]
    maps = zip(sides, split_weights(module, own), split_biases(own), strict=True)
    return [F.linear(x, weight, bias).requires_grad_() for x, weight, bias in maps]


def input_parts(
    module: nn.MultiheadAttention, gradients: list[Tensor], sides: list[Tensor], weights: list[Tensor], scale: float
) -> dict[str, Contribution]:
    """The maps before the heads: one matrix of three blocks, or three matrices where widths differ. One gradient and one
    side: those of all three."""
    parts: dict[str, Contribution] = {}
    if len(gradients) == 1:
        parts["in_proj_weight"] = Positions(gradients[0], sides[0], module.in_proj_weight.shape, scale)
    else:
        triples = zip(gradients, sides, weights, strict=True)
        blocks: list[Contribution] = [Positions(b, x, weight.shape, scale) for b, x, weight in triples]
        if module._qkv_same_embed_dim:
            parts["in_proj_weight"] = Stacked(blocks, module.in_proj_weight.shape)
        else:
            parts |= dict(zip(("q_proj_weight", "k_proj_weight", "v_proj_weight"), blocks, strict=True))
    if module.in_proj_bias is not None:
        rows = torch.cat([b.sum(1) for b in gradients], -1)
        parts["in_proj_bias"] = Rows(rows, module.in_proj_bias.shape, scale)
    return parts


def attend(
    module: nn.MultiheadAttention, projected: list[Tensor], given: dict[str, Any], training: bool
) -> tuple[Tensor, Tensor | None]:
    """Softmax attention of all heads, joined [B, L, E], and its weights where the caller asked for them."""
    B, heads = len(projected[0]), module.num_heads
    q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in projected)  # [B, heads, S, each]
    mask, dropout = join_masks(given, B, heads, q), module.dropout if training else 0.0
    if not given.get("need_weights", True):
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
        return out.transpose(1, 2).flatten(2), None
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
    weights = torch.softmax(scores if mask is None else scores + mask, -1)
    weights = F.dropout(weights, dropout) if dropout > 0 else weights
    shown = weights.mean(1) if given.get("average_attn_weights", True) else weights
    return (weights @ v).transpose(1, 2).flatten(2), shown


def join_masks(given: dict[str, Any], B: int, heads: int, like: Tensor) -> Tensor | None:
    """What is added to the scores; True means "must not be seen" in the masks that the module takes."""
    mask, padding = given.get("attn_mask"), given.get("key_padding_mask")
    mask, padding = (None if m is None else as_addend(m, like) for m in (mask, padding))
    if mask is not None and mask.dim() == 3:
        mask = mask.unflatten(0, (B, heads))
    if padding is not None:
        padding = padding[:, None, None, :]
        mask = padding if mask is None else mask + padding
    return mask


def as_addend(mask: Tensor, like: Tensor) -> Tensor:
    if mask.dtype == torch.bool:
        return torch.zeros_like(mask, dtype=like.dtype).masked_fill(mask, float("-inf"))
    return mask.to(like.dtype)

"""Attention: its linear maps have individual gradients like any Linear, once their output gradients are known.

``MultiheadAttention`` never calls its children, so the gradient at the projected queries, keys and values is not seen. It
is read where it passes by in the graph, if all three come from one product there. Else it is computed by repeating
what lies between the maps, once for the whole batch and with the random state of the call. Queries, keys and values
may be three
different sequences.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cockpit_core.foundation.graph_leaves import variable_of
from cockpit_core.layers.contribution import Contribution, Positions, Rows, Stacked
from cockpit_core.layers.random_state import restored
from cockpit_core.layers.registry import INNER, Call, match_dtype, of_outputs, rule
from cockpit_core.layers.row_order import BySample, by_sample
from cockpit_core.layers.standing_in import Later

ORDER = ("query", "key", "value", "key_padding_mask", "need_weights", "attn_mask", "average_attn_weights", "is_causal")
SIDES = ("query", "key", "value")


Sides = list[Tensor]
SAVED = {"AddmmBackward0": "_saved_mat1", "MmBackward0": "_saved_self"}
"""What a product of matrices keeps of its input."""
MOST_NODES = 48
"""How many nodes are looked at, from the output back to the first map."""


def find_inner(call: Call, outputs: list[Tensor]) -> Any:
    """The node that gives queries, keys and values at once; what the last map was given goes to the call. None where
    the graph looks different."""
    module: nn.MultiheadAttention = call.module  # type: ignore[assignment]
    end = outputs[0].grad_fn if outputs else None
    if end is None or not module._qkv_same_embed_dim:
        return None
    ending, weight, bias = module.out_proj.weight, module.in_proj_weight, module.in_proj_bias
    known = _ways.setdefault(module, {})
    last = find_node(end, lambda node: is_product(node, ending), known, "last")
    if last is None:
        return None
    behind = last.next_functions[-2][0]
    first = find_node(behind, lambda node: is_product(node, weight), known, "first")
    if first is not None and bias is not None:  # it may be added to the product, and its gradient comes first then
        first = find_node(
            behind, lambda node: any(holds(following, bias) for following, _ in node.next_functions), known, "bias"
        )
    call.inner = None if first is None else getattr(last, SAVED[last.name()]).detach()
    return first


_ways: weakref.WeakKeyDictionary[nn.Module, dict[str, tuple[int, ...]]] = weakref.WeakKeyDictionary()
"""By module: the ways that led to nodes of its last call. Where one leads to such a node again, nobody has to search."""


def find_node(start: Any, is_it: Callable[[Any], bool], known: dict[str, tuple[int, ...]], name: str) -> Any:
    """The nearest one, back from ``start``; first by the way that is ``known`` under this name."""
    node = follow(start, known.get(name))
    if node is not None and is_it(node):
        return node
    waiting: list[tuple[Any, tuple[int, ...]]] = [(start, ())]
    seen = set[Any]()
    while waiting and len(seen) < MOST_NODES:
        node, way = waiting.pop(0)
        if node is None or node in seen:
            continue
        if is_it(node):
            known[name] = way
            return node
        seen.add(node)
        waiting += [(following, (*way, k)) for k, (following, _) in enumerate(node.next_functions)]
    return None


def follow(node: Any, way: tuple[int, ...] | None) -> Any:
    """The node at the end of this way; None where there is no such way."""
    if way is None:
        return None
    for k in way:
        followers = node.next_functions if node is not None else ()
        if k >= len(followers):
            return None
        node = followers[k][0]
    return node


def is_product(node: Any, weight: Tensor) -> bool:
    """With the whole of this very weight, transposed."""
    turned = node.next_functions[-1][0] if node.name() in SAVED else None
    return turned is not None and len(turned.next_functions) == 1 and holds(turned.next_functions[0][0], weight)


def holds(node: Any, parameter: Tensor) -> bool:
    return node is not None and variable_of(node) is parameter


@rule(nn.MultiheadAttention, repeats=True, find_inner=find_inner)
def attention(call: Call, gradients: dict[int, Tensor], scale: float) -> dict[str, Contribution] | None:
    """Contributions by local parameter name; None where the call has no rule (the fallback is used)."""
    module: nn.MultiheadAttention = call.module  # type: ignore[assignment]
    given, outputs = dict(zip(ORDER, call.inputs, strict=False)) | call.kwargs, of_outputs(gradients)
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
    again = partial(repeat_attention, call, given, sides, b, outputs, packed=packed)
    inner = call.inner if packed and fits(call.inner, b) else None
    if inner is not None:
        joined = rows_first(inner, b)
        parts = wait_for_inner(call, gradients, sides[0], gather, scale, again)
    else:
        joined, slopes = again()
        inputs = [gather(x) for x in (sides[:1] if packed else sides)]
        parts = input_parts(module, [gather(g) for g in slopes], inputs, split_weights(module, own), scale)
    b = gather(b)
    parts["out_proj.weight"] = Positions(b, gather(joined), like.shape, scale)
    if module.out_proj.bias is not None:
        parts["out_proj.bias"] = Rows(b.sum(1), module.out_proj.bias.shape, scale)
    return parts


def fits(inner: Tensor | None, b: Tensor) -> bool:
    """Inside the module sequences come first; ``b`` [R, S, E] is the gradient of its output."""
    return inner is not None and inner.dtype == b.dtype and inner.shape == (b.shape[0] * b.shape[1], b.shape[2])


def rows_first(inner: Tensor, b: Tensor) -> Tensor:
    """[S R, features] or [S, R, features] to [R, S, features]."""
    return inner.reshape(b.shape[1], b.shape[0], -1).transpose(0, 1)


def wait_for_inner(
    call: Call,
    gradients: dict[int, Tensor],
    x: Tensor,
    gather: BySample,
    scale: float,
    again: Callable[[], tuple[Tensor, Sides]],
) -> dict[str, Contribution]:
    """The contribution of the map before the heads, whose gradient arrives when that of the map behind them has been
    used already."""
    module: nn.MultiheadAttention = call.module  # type: ignore[assignment]

    @cache
    def get() -> dict[str, Contribution]:
        b = rows_first(gradients[INNER], x) if INNER in gradients else again()[1][0]
        return input_parts(module, [gather(match_dtype(b, x))], [gather(x)], [], scale)

    shapes = {"in_proj_weight": module.in_proj_weight.shape}
    if module.in_proj_bias is not None:
        shapes["in_proj_bias"] = module.in_proj_bias.shape
    return {n: Later(lambda n=n: get()[n], call.batch_size, shape) for n, shape in shapes.items()}  # type: ignore[misc]


def repeat_attention(
    call: Call, given: dict[str, Any], sides: Sides, b: Tensor, outputs: dict[int, Tensor], *, packed: bool
) -> tuple[Tensor, Sides]:
    """What the heads gave, joined [R, S, E], and the gradient at the projected queries, keys and values."""
    module: nn.MultiheadAttention = call.module  # type: ignore[assignment]
    own = call.own_parameters()
    like, state = own["out_proj.weight"], call.random_state if call.training and module.dropout > 0 else None
    with torch.enable_grad():
        projected = project_inputs(module, own, sides, packed=packed)
        with restored(state and state[0]):
            joined, weights = attend(
                module, list(projected[0].chunk(3, -1)) if packed else projected, given, call.training
            )
        ends, seeds = [joined], [b @ like.detach()]
        if 1 in outputs:
            ends, seeds = [joined, weights], [*seeds, match_dtype(outputs[1], like)]  # type: ignore[list-item]
        return joined.detach(), list(torch.autograd.grad(ends, projected, seeds))


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

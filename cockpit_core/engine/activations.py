"""What the units of a network do, read from the autograd graph before the backward pass begins.

A graph keeps what the backward pass of an activation needs: the output of a ReLU, the input of a GELU, queries and keys of
fused attention. It is all there, whether the network called a module or a function, and nothing has to be hooked or
kept. At most ``MOST`` elements of each activation are read, evenly spread over samples and positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cockpit_core.distributed.group import Group
from cockpit_core.engine.loss.graph import below
from cockpit_core.quantities.measured import Activations, Attention, Scale, Units

MOST = 2**15
AT_ONCE = 2**17
"""Elements of an output that are read without choosing."""
ROWS = 2**9
"""Rows of attention that are looked at."""
NEAR = 64  # nodes that are searched for the layer before an activation
CHANNELS_SECOND = ("Convolution", "BatchNorm", "GroupNorm", "InstanceNorm")
SATURATED = 0.99

Formula = Callable[[Any, Tensor], Tensor]
INPUTS: dict[str, Formula] = {
    "Gelu": lambda node, x: F.gelu(x, approximate=node._saved_approximate),
    "Silu": lambda node, x: F.silu(x),
    "LeakyRelu": lambda node, x: F.leaky_relu(x, node._saved_negative_slope),
    "Elu": lambda node, x: torch.where(
        x > 0, x, node._saved_alpha * torch.expm1(x * node._saved_input_scale)
    ) * node._saved_scale,
    "Softplus": lambda node, x: F.softplus(x, node._saved_beta, node._saved_threshold),
    "Mish": lambda node, x: F.mish(x),
    "Hardswish": lambda node, x: F.hardswish(x),
    "Hardtanh": lambda node, x: F.hardtanh(x, node._saved_min_val, node._saved_max_val),
}  # fmt: skip
OUTPUTS = ("Relu", "Tanh", "Sigmoid")
FUSED = ("ScaledDotProductFlash", "ScaledDotProductEfficient", "ScaledDotProductCudnn", "ScaledDotProductFused")


def note_output(into: Activations, name: str, tensors: list[Tensor]) -> None:
    """The first tensor with a dimension: whatever else a layer (or the model, "") returns is its state or its loss."""
    tensor = next((t for t in tensors if t.dim() and t.numel()), None)
    if tensor is not None:
        scale, known = measure_scale(name, tensor.detach()), into.scales.get(name)
        into.scales[name] = scale if known is None else known.add(scale)


def read_activations(root: Any, names: Mapping[int, str], wanted: set[str]) -> Activations:
    """Everything that ``wanted`` ("units", "attention") asks for in the graph behind ``root``."""
    seen = Activations()
    with torch.no_grad():
        for node in below(root):
            kind = node.name().removesuffix("Backward0")
            try:
                if "units" in wanted and (kind in OUTPUTS or kind in INPUTS):
                    seen.units.append(read_units(kind, node, names))
                elif "attention" in wanted and kind in ("Softmax", "SafeSoftmax") and is_attention(node):
                    seen.attention.append(read_softmax(node, names))
                elif "attention" in wanted and kind.startswith(FUSED):
                    seen.attention.append(read_fused(node, names))
            except RuntimeError as error:  # what the graph had kept is gone: overwritten in place, or freed
                seen.reason = f"the graph no longer shows an activation ({str(error).splitlines()[0][:120]})"
    return seen


def find_layer(node: Any, names: Mapping[int, str]) -> tuple[str, bool]:
    """The nearest trainable parameter before a node, its weight if it has one, and whether its units are dimension 1."""
    seen, waiting, second = {node}, [node], False
    for own in waiting:
        second = second or any(word in own.name() for word in CHANNELS_SECOND)
        for child, _ in own.next_functions:
            name = names.get(id(getattr(child, "variable", None)))
            if name is not None:
                weight = name.removesuffix("bias") + "weight" if name.endswith("bias") else name
                return (weight if weight in names.values() else name), second
            if child is not None and child not in seen and len(waiting) < NEAR:
                seen.add(child)
                waiting.append(child)
    return "", second


def read_units(kind: str, node: Any, names: Mapping[int, str]) -> Units:
    values = node._saved_result if kind in OUTPUTS else node._saved_self
    layer, second = find_layer(node, names)
    dim = 1 if values.dim() > 3 or (second and values.dim() > 2) else values.dim() - 1
    rows, part = thin(values.movedim(dim, -1))
    h = rows if kind in OUTPUTS else INPUTS[kind](node, rows)
    sizes = h.abs().sum(0, dtype=torch.float64).cpu()
    dies = kind in ("Relu", "Hardswish") or (kind == "Hardtanh" and node._saved_min_val == 0)
    return Units(
        kind,
        layer,
        dies,
        sizes != 0,  # also NaN
        sizes,
        len(h),
        count_saturated(kind, node, h),
        part,
    )


def count_saturated(kind: str, node: Any, h: Tensor) -> float:
    if kind == "Tanh":
        return float((h.abs() > SATURATED).sum())
    if kind == "Sigmoid":
        return float(((h - 0.5).abs() > SATURATED / 2).sum())
    if kind == "Hardtanh":
        return float(((h <= node._saved_min_val) | (h >= node._saved_max_val)).sum())
    return math.nan


def thin(values: Tensor) -> tuple[Tensor, float]:
    """[rows, units], rows evenly spread over samples, then over positions; and which part of all rows they are."""
    units = max(values.shape[-1], 1)
    most, total = max(8, MOST // units), values.numel() // units
    if total > most:
        samples = max(8, most // max(1, total // len(values)))
        values = values[:: max(1, len(values) // samples)]
        between = values.dim() - 2
        if between > 0:
            stride = max(1, int((values.numel() / units / most) ** (1 / between)))
            values = values[(slice(None), *(slice(None, None, stride),) * between)]
    rows = values.reshape(-1, units)
    return rows, len(rows) / max(total, 1)


def is_attention(node: Any) -> bool:
    """A softmax over the last of at least three dimensions; over classes it is a matrix, or has other dimensions."""
    result = node._saved_result
    return result.dim() > 2 and node._saved_dim in (result.dim() - 1, 2**64 - 1)


def read_softmax(node: Any, names: Mapping[int, str]) -> Attention:
    result = node._saved_result
    rows = result.reshape(-1, result.shape[-1])
    every = max(1, len(rows) // ROWS)
    p = rows[::every]
    return Attention(find_layer(node, names)[0], entropy_of(p), len(p), math.nan, len(p) / len(rows))


def read_fused(node: Any, names: Mapping[int, str]) -> Attention:
    """Queries and keys of fused attention [B, heads, L, E]: a few rows of their products are computed again."""
    q, k = node._saved_query, node._saved_key
    samples = slice(None, None, max(1, len(q) // 8))
    each = max(1, ROWS // max(1, len(q[samples]) * q.shape[1]))
    rows, k = slice(None, None, max(1, q.shape[2] // each)), k[samples]
    k = (
        k if k.shape[1] == q.shape[1] else k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    )  # grouped queries share keys
    scale = node._saved_scale if node._saved_scale is not None else q.shape[-1] ** -0.5
    scores = (widen(q[samples][:, :, rows]) * scale) @ widen(k).transpose(-2, -1)
    mask = getattr(node, "_saved_attn_mask", None)
    mask = getattr(node, "_saved_attn_bias", None) if mask is None else mask
    if mask is not None:
        mask = mask.expand(len(q), *mask.shape[1:])[samples] if mask.dim() == 4 else mask
        scores = scores + (mask[..., rows, :] if mask.shape[-2] > 1 else mask)
    if node._saved_is_causal:
        later = torch.arange(k.shape[2], device=q.device) > torch.arange(q.shape[2], device=q.device)[rows, None]
        scores = scores.masked_fill(later, -math.inf)
    p = torch.softmax(scores, -1).flatten(0, -2)
    seen = scores if mask is None and not node._saved_is_causal else scores.masked_fill(scores == -math.inf, 0)
    largest = float(seen.abs().amax())
    return Attention(find_layer(node, names)[0], entropy_of(p), len(p), largest, len(p) / q[..., 0].numel())


def widen(values: Tensor) -> Tensor:
    """Half precision overflows in squares and products."""
    return values.float() if values.dtype.itemsize < 4 else values


def entropy_of(p: Tensor) -> float:
    """Sum over rows of ``-sum p log p``, in nats."""
    return float(torch.special.entr(widen(p)).sum(dtype=torch.float64))


def measure_scale(name: str, tensor: Tensor) -> Scale:
    flat = tensor.reshape(-1)
    chosen = widen(flat[:: find_stride(tensor)])
    squares = float(torch.linalg.vector_norm(chosen)) ** 2
    largest = float(torch.linalg.vector_norm(chosen, math.inf)) if not name else math.nan
    elements = chosen.numel()
    return Scale(name, squares, elements, largest, elements / flat.numel())


def find_stride(tensor: Tensor) -> int:
    """Every how many elements one is read. In few enough all are: that takes no longer than picking some."""
    total = tensor.numel()
    if total <= AT_ONCE:
        return 1
    stride, each = total // MOST, max(1, total // max(1, tensor.shape[0]))
    while math.gcd(stride, each) > 1:  # one that divides what a sample has would meet the same features again and again
        stride += 1
    return stride


def join_activations(group: Group, mine: Activations) -> Activations:
    """For the global batch. Where what the processes saw does not fit together, it is listed side by side."""
    joined, *others = group.gather("activations", mine)
    for other in others:
        joined.add(other)
    return joined

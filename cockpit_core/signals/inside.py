"""What the graph of the network shows and no module does: dropout that is a function, attention that runs over the batch."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from cockpit_core.curvature.autograd_graph import kind_of, output_shape
from cockpit_core.engine.samples.replay import TELLS_HOOKS, is_packed

_LAYERS = ("Addmm", "Mm", "Bmm", "Convolution")
_KEEPS_PLACES = frozenset("View UnsafeView ReshapeAlias Expand Clone ToCopy NativeDropout NanToNum MaskedFill".split())
MOST, ELEMENTS = 2000, 4096  # nodes; elements of a mask that are looked at
SAMPLES, LEAST_KEYS = 32, 3  # of attention
LEAST = 64  # elements: fewer may be 0 and c by accident


def measure_inside(root: Any, samples: int) -> dict[str, float]:
    """``graph_dropout``: the largest probability of dropping among all dropouts behind ``root``. ``batch_attention``: 1 where
    a softmax inside the network runs along the samples. ``attention_share``: the least entropy of attention weights, as a share
    of the largest that is possible. ``query_softmax``: 1 where weights that add up over the queries, not over the keys, are
    multiplied with what the keys hold. ``graph_half``: 1 where a layer computes in float16. Nothing where there is none."""
    waiting, seen = [(root, False)], set[Any]()  # with: is there a layer between it and the loss?
    dropout = over_batch = over_queries = half = 0.0
    shares: list[float] = []
    while waiting and len(seen) < MOST:
        node, behind = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        kind = kind_of(node)
        if kind == "NativeDropout":
            dropout = max(dropout, float(node._saved_p))
        elif kind == "Softmax":
            over_batch = max(over_batch, float(mixes_samples(node, samples)))
            shares += read_attention(node) if behind and is_open(node) else []
        elif kind == "Mul" and node.next_functions[-1][0] is None and is_open(node):
            dropout = max(dropout, read_mask(node._saved_other))
        elif kind == "Bmm" and adds_up_elsewhere(node):
            over_queries = 1.0
        elif kind in _LAYERS and node._input_metadata[0].dtype == torch.float16:
            half = 1.0
        behind = behind or kind in _LAYERS
        waiting += [(child, behind) for child, _ in node.next_functions]
    numbers = {"graph_dropout": dropout, "batch_attention": over_batch, "graph_half": half}
    numbers["query_softmax"] = over_queries
    known = {name: value for name, value in numbers.items() if value > 0}
    return known | ({"attention_share": min(shares)} if shares else {})


def is_open(node: Any) -> bool:
    """May its saved tensors be looked at? Where a hook has packed them, that would run somebody's code: checkpointing computes a
    part of the network again."""
    return not is_packed(node, not TELLS_HOOKS)


def mixes_samples(softmax: Any, samples: int) -> bool:
    """Along the first dimension, which counts samples and not, say, the steps of a sequence that stands first."""
    shape = output_shape(softmax)
    first = len(shape) > 1 and shape[-1] > 1 and softmax._saved_dim % 2**64 in (0, 2**64 - len(shape))
    return first and shape[0] == samples > 1 and samples not in shape[1:]


def adds_up_elsewhere(product: Any) -> bool:
    """``weights @ values``, where the weights are a softmax along another dimension than the one that is summed over."""
    node = product.next_functions[0][0]
    for _ in range(8):
        masked = node is not None and kind_of(node) == "Mul" and node.next_functions[-1][0] is None  # dropout
        if node is None or not (masked or kind_of(node) in _KEEPS_PLACES):
            break
        node = node.next_functions[0][0]
    if node is None or kind_of(node) != "Softmax":
        return False
    shape, dim = output_shape(node), node._saved_dim % 2**64
    place = dim if dim < len(shape) else dim + len(shape) - 2**64
    return len(shape) > 2 and 0 < place < len(shape) - 1 and shape[-1] > 1 and shape[place] > 1


def runs_over_samples(layer: nn.RNNBase, args: tuple, samples: int) -> bool:
    """Does a recurrent layer take the samples for the steps of one sequence? ``batch_first`` was forgotten, or is one too many."""
    x = args[0] if args else None
    if not isinstance(x, Tensor) or x.dim() != 3:  # packed sequences know which is which
        return False
    others, steps = (x.shape[0], x.shape[1]) if layer.batch_first else (x.shape[1], x.shape[0])
    return steps == samples > 1 and others != samples


def read_attention(softmax: Any) -> list[float]:
    """Entropy of the weights of each query over that of looking at all its keys alike, on average. Keys that no sample looks at
    are masked."""
    shape = output_shape(softmax)
    last = len(shape) > 2 and softmax._saved_dim % 2**64 in (len(shape) - 1, 2**64 - 1)
    weights = softmax._saved_result
    if not last or shape[-1] < LEAST_KEYS or not weights.is_cpu:
        return []
    rows = weights.detach().reshape(-1, shape[-2], shape[-1])[:SAMPLES].float()
    keys = (rows > 0).any(0).sum(-1)  # of each query
    open_ = keys >= LEAST_KEYS
    if not bool(open_.any()):
        return []
    entropy = -(rows * rows.clamp_min(1e-30).log()).sum(-1).mean(0)
    return [float((entropy[open_] / keys[open_].log()).mean())]


def read_mask(mask: Any) -> float:
    """p, if all elements are 0 or 1 / (1 - p) and about p of them are 0; else 0. Any other mask keeps what it lets through as
    it is: it has c = 1."""
    if not isinstance(mask, Tensor) or not mask.is_cpu or not mask.is_floating_point() or mask.numel() < LEAST:
        return 0.0
    part = mask.detach().reshape(-1)[:ELEMENTS] if mask.is_contiguous() else mask.detach().flatten()[:ELEMENTS]
    top = float(part.max())
    if not 1 < top < math.inf:
        return 0.0
    dropped = part == 0
    p, share = 1 - 1 / top, float(dropped.float().mean())
    only_two = bool(torch.logical_or(dropped, part == top).all())
    return p if only_two and abs(share - p) < 5 * math.sqrt(p * (1 - p) / part.numel()) + 0.01 else 0.0

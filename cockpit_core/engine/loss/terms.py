"""What the nodes of a loss have computed, from what they keep for their own backward pass.

``elements_of(node)`` is the tensor that a node gave, or, for a loss that was reduced inside its node (``NllLoss``,
``MseLoss``), its addends: in every case a tensor whose entries add up, weighted with their gradient, to what the node
is worth to the loss. The saved tensors are those of the user's graph, so the elements can be differentiated again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from cockpit_core.curvature.autograd_graph import kind_of, output_shape


class Unreadable(Exception):
    """The message says which node, for the user."""


def signed(value: int) -> int:
    """Saved integers come back as unsigned 64-bit numbers."""
    return value - 2**64 if value >= 2**63 else value


def _reduce(node: Any, raw: Tensor, mean_over: Any = None) -> Tensor:
    """Addends of a loss that its node reduced; 0 is "none", 1 "mean", 2 "sum"."""
    if node._saved_reduction != 1:
        return raw
    return raw / (raw.numel() if mean_over is None else mean_over)


def _nll(node: Any) -> Tensor:
    """Addends [N] or [N, positions...]; a mean divides by the weights of the targets that count."""
    logp, target, weight = node._saved_self, node._saved_target, node._saved_weight
    valid = target != signed(node._saved_ignore_index)
    index = torch.where(valid, target, 0)
    dim = 1 if logp.dim() > target.dim() and logp.dim() > 1 else 0
    raw = -logp.gather(dim, index.unsqueeze(dim)).squeeze(dim)
    share = valid.to(logp.dtype) if weight is None else weight[index] * valid
    raw = torch.where(valid, raw, 0.0) * share
    return _reduce(node, raw, share.sum())


def _pointwise(function: Callable[..., Tensor], *names: str) -> Callable[[Any], Tensor]:
    def rule(node: Any) -> Tensor:
        named = {name: getattr(node, f"_saved_{name}") for name in names}
        return _reduce(node, function(node._saved_self, node._saved_target, reduction="none", **named))

    return rule


def _multi_margin(node: Any) -> Tensor:
    raw = F.multi_margin_loss(
        node._saved_self, node._saved_target, int(node._saved_p), float(node._saved_margin), node._saved_weight,
        reduction="none",
    )  # fmt: skip
    return _reduce(node, raw)


def _ctc(node: Any) -> Tensor:
    losses = node._saved_result0
    return torch.where(torch.isinf(losses), 0.0, losses) if node._saved_zero_infinity else losses


LOSSES: dict[str, Callable[[Any], Tensor]] = {
    "NllLoss": _nll,
    "NllLoss2D": _nll,
    "MseLoss": _pointwise(F.mse_loss),
    "SmoothL1Loss": _pointwise(F.smooth_l1_loss, "beta"),
    "HuberLoss": _pointwise(F.huber_loss, "delta"),
    "BinaryCrossEntropy": _pointwise(F.binary_cross_entropy, "weight"),
    "BinaryCrossEntropyWithLogits": _pointwise(F.binary_cross_entropy_with_logits, "weight", "pos_weight"),
    "SoftMarginLoss": _pointwise(F.soft_margin_loss),
    "MultiMarginLoss": _multi_margin,
    "MultilabelMarginLoss": _pointwise(F.multilabel_margin_loss),
    "CtcLoss": _ctc,
}
"""Losses of torch that are one node, reduced inside it or not."""


def _clamp(node: Any) -> Tensor:
    low, high = getattr(node, "_saved_min", None), getattr(node, "_saved_max", None)
    return node._saved_self.clamp(low, high)


FROM_INPUT: dict[str, Callable[[Any], Tensor]] = {
    "Abs": lambda n: n._saved_self.abs(),
    "Pow": lambda n: n._saved_self.pow(n._saved_exponent),
    "Log": lambda n: n._saved_self.log(),
    "Log2": lambda n: n._saved_self.log2(),
    "Log10": lambda n: n._saved_self.log10(),
    "Log1P": lambda n: n._saved_self.log1p(),
    "LogSigmoid": lambda n: F.logsigmoid(n._saved_self),
    "Softplus": lambda n: F.softplus(n._saved_self, n._saved_beta, n._saved_threshold),
    "ClampMin": _clamp,
    "ClampMax": _clamp,
    "Clamp": _clamp,
    "Sin": lambda n: n._saved_self.sin(),
    "Cos": lambda n: n._saved_self.cos(),
    "Atan": lambda n: n._saved_self.atan(),
    "Erf": lambda n: n._saved_self.erf(),
    "Lgamma": lambda n: n._saved_self.lgamma(),
    "Gelu": lambda n: F.gelu(n._saved_self, approximate=n._saved_approximate),
    "Silu": lambda n: F.silu(n._saved_self),
    "LeakyRelu": lambda n: F.leaky_relu(n._saved_self, n._saved_negative_slope),
    "Mul": lambda n: n._saved_self * n._saved_other,
    "Div": lambda n: n._saved_self / n._saved_other,
    "Maximum": lambda n: torch.maximum(n._saved_self, n._saved_other),
    "Minimum": lambda n: torch.minimum(n._saved_self, n._saved_other),
    "Mm": lambda n: n._saved_self @ n._saved_mat2,
    "Bmm": lambda n: n._saved_self @ n._saved_mat2,
    "Mv": lambda n: n._saved_self @ n._saved_vec,
    "Dot": lambda n: n._saved_self @ n._saved_tensor,
    "CosineSimilarity": lambda n: F.cosine_similarity(n._saved_x1, n._saved_x2, signed(n._saved_dim), n._saved_eps),
    "Xlogy": lambda n: torch.xlogy(n._saved_self, n._saved_other),
}
"""Operations whose result can be computed again from what they were given."""

LINEAR = frozenset(
    """View UnsafeView Reshape ReshapeAlias Permute Transpose T Squeeze Unsqueeze Expand Repeat Mean Sum Cat Stack Slice
    Select Split SplitWithSizes Narrow Add Sub Rsub Neg Mul Div Clone ToCopy To Alias Flip Roll Unbind Unflatten Flatten
    AsStrided Index IndexSelect Gather MaskedFill MaskedSelect Where Cumsum IndexAdd ScatterAdd Contiguous Detach
    Diagonal DiagonalCopy Trace Tril Triu Movedim Swapaxes Max Min Sort Topk Median ConstantPadNd Nansum Copy
    SegmentReduce""".split()
)
"""Linear (or a choice of entries) in their one operand that depends on the parameters."""


def elements_of(node: Any) -> Tensor:
    """The result of this node, or its addends; Unreadable where neither is known."""
    kind = kind_of(node)
    try:
        if kind in LOSSES:
            return LOSSES[kind](node)
        if kind in FROM_INPUT:
            elements: Any = FROM_INPUT[kind](node)
        else:
            elements = getattr(node, "_saved_result", None)
    except Unreadable:
        raise
    except (RuntimeError, AttributeError, TypeError) as error:
        raise Unreadable(f"what {kind} has kept cannot be read ({str(error).splitlines()[0][:120]})") from error
    if not isinstance(elements, Tensor) or tuple(elements.shape) != output_shape(node):
        raise Unreadable(f"the graph of the loss has a node {kind} whose values it does not keep")
    return elements


def is_linear(node: Any) -> bool:
    """Linear in what depends on parameters, given that the rest is constant."""
    kind = kind_of(node)
    if kind not in LINEAR:
        return False
    active = [child is not None for child, _ in node.next_functions]
    if kind == "Div":
        return not any(active[1:])
    return kind != "Mul" or sum(active) == 1

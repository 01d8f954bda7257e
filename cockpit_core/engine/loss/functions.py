"""The functions behind the nodes of a loss: what each computes from its operands, with all else that its node has kept.

``read_function(node)`` gives a function of the operands that depend on the network (None for those that do not). What a
node keeps for its own backward pass is all there is: masks, targets, indices and factors are the user's own tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from cockpit_core.curvature.autograd_graph import kind_of, output_shape
from cockpit_core.engine.loss.terms import signed

Function = Callable[..., Any]
"""Takes one value for each operand; gives a tensor, or a tuple if the node has several results."""
REDUCTIONS = ("none", "mean", "sum")


class Unknown(Exception):
    """The message says which function of the loss cannot be computed again."""


class Kept:
    """What one node has kept. It is taken at once: a backward pass frees it. ``tensors`` are those that were taken."""

    def __init__(self, node: Any):
        self.node, self.tensors = node, list[Tensor]()
        self.kind, self.shape = kind_of(node), output_shape(node)

    def __call__(self, name: str) -> Any:
        saved = getattr(self.node, f"_saved_{name}")
        values = saved if isinstance(saved, (tuple, list)) else (saved,)
        self.tensors += [value for value in values if isinstance(value, Tensor)]
        if isinstance(saved, (tuple, list)):
            return tuple(as_signed(value) for value in saved)
        return as_signed(saved)

    def has(self, name: str) -> bool:
        return hasattr(self.node, f"_saved_{name}")

    def operand(self, k: int, name: str) -> Any:
        """None if it depends on the network, else as it is kept."""
        edges = self.node.next_functions
        return None if k < len(edges) and edges[k][0] is not None else self(name)

    @property
    def dims(self) -> tuple[int, ...]:
        dim = self("dim")
        return (dim,) if isinstance(dim, int) else tuple(dim or ())


def as_signed(value: Any) -> Any:
    return signed(value) if type(value) is int else value


Reader = Callable[[Kept], Function]


@dataclass(frozen=True)
class Read:
    function: Function
    tensors: list[Tensor]
    """The user's own tensors that the function uses."""


def read_function(node: Any) -> Read:
    kept = Kept(node)
    reader = FUNCTIONS.get(kept.kind)
    if reader is None or hasattr(node, "_forward_cls"):
        raise Unknown(f"it uses {kept.kind}, which cannot be computed again from its graph")
    try:
        return Read(reader(kept), kept.tensors)
    except (AttributeError, RuntimeError, TypeError) as error:
        raise Unknown(f"what {kept.kind} has kept cannot be read ({str(error).splitlines()[0][:120]})") from error


# ---- makers of readers -----------------------------------------------------------------------------------------------


def plain(function: Callable[[Tensor], Any]) -> Reader:
    return lambda kept: function


def given(function: Callable[..., Any], *names: str) -> Reader:
    """With what is kept under these names as further arguments."""

    def read(kept: Kept) -> Function:
        values = [kept(name) for name in names]
        return lambda x: function(x, *values)

    return read


def pair(function: Callable[[Tensor, Tensor], Tensor], first: str = "self", second: str = "other") -> Reader:
    def read(kept: Kept) -> Function:
        one, two = kept.operand(0, first), kept.operand(1, second)
        return lambda x, y=None: function(one if x is None else x, two if y is None else y)

    return read


def reduced(function: Callable[..., Any], *names: str) -> Reader:
    """Over all entries, or over some dimensions."""

    def read(kept: Kept) -> Function:
        more = {name: kept(name) for name in names}
        if not kept.has("dim") or not kept.dims:
            return lambda x: function(x, **more)
        dims, keep = kept.dims, kept("keepdim")
        return lambda x: function(x, dim=dims, keepdim=keep, **more)

    return read


def along_one(function: Callable[..., Any]) -> Reader:
    """``x.max()``, or ``x.max(dim)`` with its places."""

    def read(kept: Kept) -> Function:
        if not kept.has("dim"):
            return function
        dim, keep = kept("dim"), kept("keepdim")
        return lambda x: function(x, dim, keepdim=keep)

    return read


def added(sign: float, *, turned: bool = False) -> Reader:
    """Sums of two operands. A missing one is a constant that the graph does not keep: see ``constants``."""

    def read(kept: Kept) -> Function:
        factor, shape = (kept("alpha") if kept.has("alpha") else 1) * sign, kept.shape

        def compute(x: Tensor | None, y: Tensor | None = None) -> Tensor:
            x, y = (y, x) if turned else (x, y)
            if x is not None and y is not None:
                return x + y * factor
            if x is not None:
                return x.expand(shape)
            assert y is not None
            return (y * factor).expand(shape)

        return compute

    return read


def loss(function: Callable[..., Tensor], *names: str) -> Reader:
    """A loss of torch that is one node."""

    def read(kept: Kept) -> Function:
        more = {name: kept(name) for name in names}
        one, target = kept.operand(0, "self"), kept.operand(1, "target")
        how = REDUCTIONS[kept("reduction")]

        def compute(x: Tensor | None, y: Tensor | None = None) -> Tensor:
            x, y = one if x is None else x, target if y is None else y
            return function(x, y, reduction=how, **more)

        return compute

    return read


# ---- readers that need more ------------------------------------------------------------------------------------------


def reshaped(kept: Kept) -> Function:
    shape = kept.shape
    return lambda x: x.reshape(shape)


def expanded(kept: Kept) -> Function:
    shape = kept.shape
    return lambda x: x.expand(shape)


def converted(kept: Kept) -> Function:
    dtype = kept.node._input_metadata[0].dtype
    return lambda x: x.to(dtype)


def cut(kept: Kept) -> Function:
    dim, start, step = kept("dim"), kept("start"), kept("step")
    end = None if kept.node._saved_end == 2**63 - 1 else kept("end")
    return lambda x: x.movedim(dim, 0)[start:end:step].movedim(0, dim)


def indexed(kept: Kept) -> Function:
    places = kept("indices")
    return lambda x: x[tuple(slice(None) if place is None else place for place in places)]


def joined(function: Callable[..., Tensor]) -> Reader:
    def read(kept: Kept) -> Function:
        dim = kept("dim")
        return lambda *parts: function(parts, dim)

    return read


def power(kept: Kept) -> Function:
    name = kept.node.name()
    if name == "PowBackward0":
        exponent = kept("exponent")
        return lambda x: x.pow(exponent)
    if name == "PowBackward2":
        base = kept("self")
        return lambda x: torch.pow(base, x)
    return pair(torch.pow, "self", "exponent")(kept)


def vector_norm(kept: Kept) -> Function:
    order, dims, keep = kept("ord"), kept.dims, kept("keepdim")
    return lambda x: torch.linalg.vector_norm(x, order, dims or None, keep)


def old_norm(kept: Kept) -> Function:
    p = kept("p")
    p = 2.0 if p is None else p
    if not kept.has("dim"):
        return lambda x: torch.norm(x, p)
    dims, keep = kept.dims, kept("keepdim")
    return lambda x: torch.norm(x, p, dims, keep)


def chosen(kept: Kept) -> Function:
    """``torch.where`` of a mask. Where both sides come from the network, the condition may too, and no graph tells."""
    condition = kept("condition")
    if all(child is not None for child, _ in kept.node.next_functions):
        raise Unknown("it chooses by torch.where between two values that depend on the network, maybe by their size")
    zero = torch.zeros((), dtype=kept.node._input_metadata[0].dtype, device=condition.device)
    return lambda x, y=None: torch.where(condition, zero if x is None else x, zero if y is None else y)


def summed_by_index(kept: Kept) -> Function:
    dim, places, shape = kept("dim"), kept("index"), kept.shape
    factor = kept("alpha") if kept.has("alpha") else 1
    add = torch.index_add if kept.kind == "IndexAdd" else torch.scatter_add

    def compute(x: Tensor | None, y: Tensor) -> Tensor:
        return add(y.new_zeros(shape) if x is None else x, dim, places, y * factor)

    return compute


def connectionist(kept: Kept) -> Function:
    targets, inputs, lengths = kept("targets"), kept("input_lengths"), kept("target_lengths")
    blank, zero = kept("blank"), kept("zero_infinity")

    def compute(x: Tensor) -> Tensor:
        return F.ctc_loss(x, targets, inputs, lengths, blank, "none", zero)

    return compute


def weighted_sum(kept: Kept) -> Function:
    """``torch.addmm`` of a bias and two matrices."""
    one, two = kept.operand(1, "mat1"), kept.operand(2, "mat2")
    alpha, beta = kept("alpha"), kept("beta")

    def compute(bias: Tensor | None, x: Tensor | None, y: Tensor | None) -> Tensor:
        product = ((one if x is None else x) @ (two if y is None else y)) * alpha
        return product if bias is None else product + bias * beta

    return compute


def distances(kept: Kept) -> Function:
    p = kept("p")
    return pair(lambda x, y: torch.cdist(x, y, p), "x1", "x2")(kept)


def cosines(kept: Kept) -> Function:
    dim, eps = kept("dim"), kept("eps")
    return pair(lambda x, y: F.cosine_similarity(x, y, dim, eps), "x1", "x2")(kept)


def interpolated(kept: Kept) -> Function:
    weight = kept("weight")

    def compute(x: Tensor, y: Tensor) -> Tensor:
        if x is None or y is None:
            raise Unknown("it interpolates with a constant that its graph does not keep")
        return torch.lerp(x, y, weight)

    return compute


SHAPES = ("View", "UnsafeView", "Reshape", "ReshapeAlias", "Unsqueeze", "Squeeze", "Alias", "Clone", "Contiguous")
UNARY = {
    "Abs": torch.abs, "Exp": torch.exp, "Exp2": torch.exp2, "Expm1": torch.expm1, "Log": torch.log, "Log2": torch.log2,
    "Log10": torch.log10, "Log1P": torch.log1p, "Sqrt": torch.sqrt, "Rsqrt": torch.rsqrt, "Sigmoid": torch.sigmoid,
    "Reciprocal": torch.reciprocal, "Tanh": torch.tanh, "Relu": torch.relu, "LogSigmoid": F.logsigmoid, "Neg": torch.neg,
    "Sin": torch.sin, "Cos": torch.cos, "Tan": torch.tan, "Asin": torch.asin, "Acos": torch.acos, "Atan": torch.atan,
    "Sinh": torch.sinh, "Cosh": torch.cosh, "Erf": torch.erf, "Erfc": torch.erfc, "Erfinv": torch.erfinv,
    "Lgamma": torch.lgamma, "Digamma": torch.digamma, "Silu": F.silu, "Mish": F.mish, "T": torch.t, "Trace": torch.trace,
    "Hardsigmoid": F.hardsigmoid, "Hardswish": F.hardswish, "SpecialEntr": torch.special.entr,
}  # fmt: skip
FUNCTIONS: dict[str, Reader] = {
    **dict.fromkeys(SHAPES, reshaped),
    **{name: plain(function) for name, function in UNARY.items()},
    "Transpose": given(torch.transpose, "dim0", "dim1"),
    "Permute": given(torch.permute, "dims"), "Expand": expanded, "Slice": cut, "Select": given(torch.select, "dim", "index"),
    "Split": given(torch.split, "split_size", "dim"), "SplitWithSizes": given(torch.split, "split_sizes", "dim"),
    "Unbind": given(torch.unbind, "dim"), "Cat": joined(torch.cat), "Stack": joined(torch.stack), "ToCopy": converted,
    "Diagonal": given(torch.diagonal, "offset", "dim1", "dim2"), "Flip": given(torch.flip, "dims"),
    "Roll": given(torch.roll, "shifts", "dims"), "Repeat": given(lambda x, times: x.repeat(*times), "repeats"),
    "Tril": given(torch.tril, "diagonal"), "Triu": given(torch.triu, "diagonal"),
    "ConstantPadNd": given(F.pad, "pad"), "Unfold": given(lambda x, *a: x.unfold(*a), "dimension", "size", "step"),
    "Index": indexed, "IndexSelect": given(torch.index_select, "dim", "index"),
    "Gather": given(torch.gather, "dim", "index"), "MaskedSelect": given(torch.masked_select, "mask"),
    "MaskedFill": given(lambda x, mask: x.masked_fill(mask, 0.0), "mask"), "Where": chosen,
    "IndexAdd": summed_by_index, "ScatterAdd": summed_by_index,
    "Add": added(1), "Sub": added(-1), "Rsub": added(-1, turned=True), "Mul": pair(torch.mul), "Div": pair(torch.div),
    "Pow": power, "Maximum": pair(torch.maximum), "Minimum": pair(torch.minimum), "Atan2": pair(torch.atan2),
    "Xlogy": pair(torch.xlogy), "Logaddexp": pair(torch.logaddexp), "Mm": pair(torch.mm, "self", "mat2"),
    "Bmm": pair(torch.bmm, "self", "mat2"), "Mv": pair(torch.mv, "self", "vec"), "Dot": pair(torch.dot, "self", "tensor"),
    "Addmm": weighted_sum, "Lerp": interpolated,
    "Clamp": given(torch.clamp, "min", "max"), "ClampMin": given(torch.clamp_min, "min"),
    "ClampMax": given(torch.clamp_max, "max"), "Gelu": given(lambda x, a: F.gelu(x, approximate=a), "approximate"),
    "LeakyRelu": given(F.leaky_relu, "negative_slope"), "Softplus": given(F.softplus, "beta", "threshold"),
    "Elu": given(F.elu, "alpha"), "Hardtanh": given(F.hardtanh, "min_val", "max_val"), "Logit": given(torch.logit, "eps"),
    "Softmax": given(torch.softmax, "dim"), "LogSoftmax": given(torch.log_softmax, "dim"),
    "DiagEmbed": given(torch.diag_embed, "offset", "dim1", "dim2"),
    "Cumsum": given(torch.cumsum, "dim"), "Logcumsumexp": given(torch.logcumsumexp, "dim"),
    "Sum": reduced(torch.sum), "Mean": reduced(torch.mean), "Nansum": reduced(torch.nansum),
    "Amax": reduced(torch.amax), "Amin": reduced(torch.amin), "Logsumexp": reduced(torch.logsumexp),
    "Var": reduced(torch.var, "correction"), "Std": reduced(torch.std, "correction"),
    "Max": along_one(torch.max), "Min": along_one(torch.min), "Prod": along_one(torch.prod),
    "Median": along_one(torch.median), "LinalgVectorNorm": vector_norm, "Norm": old_norm,
    "Cdist": distances, "CosineSimilarity": cosines,
    "NllLoss": loss(F.nll_loss, "weight", "ignore_index"),
    "NllLoss2D": loss(F.nll_loss, "weight", "ignore_index"), "MseLoss": loss(F.mse_loss),
    "SmoothL1Loss": loss(F.smooth_l1_loss, "beta"), "HuberLoss": loss(F.huber_loss, "delta"),
    "BinaryCrossEntropy": loss(F.binary_cross_entropy, "weight"),
    "BinaryCrossEntropyWithLogits": loss(F.binary_cross_entropy_with_logits, "weight", "pos_weight"),
    "SoftMarginLoss": loss(F.soft_margin_loss), "MultilabelMarginLoss": loss(F.multilabel_margin_loss),
    "MultiMarginLoss": loss(F.multi_margin_loss, "p", "margin", "weight"), "CtcLoss": connectionist,
}  # fmt: skip
"""By the kind of node. What is computed by ``torch.where``, indices or masks is chosen as it was chosen then."""

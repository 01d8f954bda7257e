"""Constants that a loss adds, and its graph does not keep: ``y`` of ``(model(x) - y) ** 2``.

A node of a sum keeps nothing. What is computed without the constant is off by a constant, and stays so through all that is
linear, up to a function that is not. That function has kept what it was given, or its result tells: the constant is
what is missing there. Where all that comes after is linear, it only shifts the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from cockpit_core.curvature.autograd_graph import kind_of
from cockpit_core.engine.loss.functions import Unknown
from cockpit_core.engine.loss.terms import is_linear, signed

Parents = dict[tuple[Any, int], list[tuple[Any, int]]]
"""For each place: the nodes that use it, and as which operand."""
CHOOSES = frozenset({"Max", "Min", "Median", "Sort", "Topk"})
"""Linear in what they choose, but what is added may change the choice."""


def lacks_operand(node: Any) -> bool:
    """Does it add, or fill in, something that does not depend on the network?"""
    kind, active = kind_of(node), [child is not None for child, _ in node.next_functions]
    if kind in ("Add", "Sub", "Rsub"):
        return not all(active) or len(active) == 1
    if kind in ("Cat", "Stack", "Lerp", "Addcmul", "Addcdiv") and not all(active):
        raise Unknown(f"it takes {kind} of a constant, which its graph does not keep")
    return kind == "MaskedFill" or (kind in ("Where", "IndexAdd", "ScatterAdd") and not all(active))


def only_shifts(node: Any) -> bool:
    """Is its result off by a constant where an operand is?"""
    return not hasattr(node, "_forward_cls") and is_linear(node) and kind_of(node) not in CHOOSES


def find_constant(place: tuple[Any, int], computed: Tensor, parents: Parents) -> Tensor | None:
    """``computed`` is off by a constant: which one? None where it is not needed yet, because all above is linear."""
    users = parents.get(place, [])
    if all(only_shifts(user) for user, _ in users):
        return None
    value = find_value(users, computed)
    if value is None:
        above = ", ".join(sorted({kind_of(user) for user, _ in users if not only_shifts(user)}))
        raise Unknown(f"it adds a constant that its graph does not keep, and takes {above} of it")
    return value - computed


def find_value(users: Sequence[tuple[Any, int]], computed: Tensor) -> Tensor | None:
    """What stood at a place, from the functions that were given it."""
    for user, k in users:
        names = SAVED.get(kind_of(user), ("self", "other"))
        saved = getattr(user, f"_saved_{names[k]}", None) if k < len(names) else None
        if isinstance(saved, Tensor) and saved.shape == computed.shape:
            return saved.detach()
    if len(users) == 1 and kind_of(users[0][0]) in RESULTS:
        return RESULTS[kind_of(users[0][0])](users[0][0], computed)
    return None


SAVED = {
    **dict.fromkeys(("Mm", "Bmm"), ("self", "mat2")),
    **dict.fromkeys(("MseLoss", "SmoothL1Loss", "HuberLoss", "SoftMarginLoss"), ("self", "target")),
    **dict.fromkeys(("BinaryCrossEntropy", "BinaryCrossEntropyWithLogits"), ("self", "target")),
    **dict.fromkeys(("NllLoss", "NllLoss2D", "MultiMarginLoss", "MultilabelMarginLoss"), ("self",)),
    **dict.fromkeys(("Cdist", "CosineSimilarity"), ("x1", "x2")),
    "Mv": ("self", "vec"), "Dot": ("self", "tensor"), "Pow": ("self", "exponent"), "CtcLoss": ("log_probs",),
    "Addmm": ("", "mat1", "mat2"),
}  # fmt: skip
"""Under which names operands are kept, where they are not called self and other."""


def before_softmax(node: Any, computed: Tensor, logs: Tensor) -> Tensor:
    """Up to a shift of each row, which a softmax does not see. The shift is chosen so that most entries stay as they
    are."""
    away = computed - logs
    shift = torch.where(torch.isfinite(away), away, torch.nan).nanmedian(signed(node._saved_dim), keepdim=True).values
    return logs + torch.nan_to_num(shift)


RESULTS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "Exp": lambda node, computed: node._saved_result.detach().log(),
    "Sqrt": lambda node, computed: node._saved_result.detach() ** 2,
    "Rsqrt": lambda node, computed: node._saved_result.detach() ** -2,
    "Reciprocal": lambda node, computed: 1 / node._saved_result.detach(),
    "LogSoftmax": lambda node, computed: before_softmax(node, computed, node._saved_result.detach()),
    "Softmax": lambda node, computed: before_softmax(node, computed, node._saved_result.detach().log()),
}
"""Where the operand follows from the result, and nobody else looks at it."""

"""What can be said before the first step: which optimizer has which parameters, modes, reductions, weights that are
all equal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from cockpit_core.signals.fresh import find_fresh
from cockpit_core.signals.matrices import MATRICES, list_matrices

_DROPOUT = nn.modules.dropout._DropoutNd
_BATCH_NORM = nn.modules.batchnorm._BatchNorm
_NORMS = (_BATCH_NORM, nn.LayerNorm, nn.GroupNorm, nn.modules.instancenorm._InstanceNorm)
_MEANS = (nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d)
_TRIPLETS = (nn.TripletMarginLoss, nn.TripletMarginWithDistanceLoss)
_CONSTANT_LIMIT = 4_000_000  # elements; larger matrices are looked at in part


def find_unoptimised(model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> list[str]:
    """Parameters that require a gradient and are in no optimizer."""
    owned = {id(p) for o in optimizers for group in o.param_groups for p in group["params"]}
    return [name for name, p in model.named_parameters() if p.requires_grad and id(p) not in owned]


def count_foreign(model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> int:
    """Tensors that the optimizers move and the model does not have: layers that were replaced after the optimizer was
    made, or parts of another model."""
    mine = {id(p) for p in model.parameters()}
    return sum(id(p) not in mine for o in optimizers for group in o.param_groups for p in group["params"])


def count_held(model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> int:
    """Tensors of the model that an optimizer moves."""
    mine = {id(p) for p in model.parameters()}
    return sum(id(p) in mine for o in optimizers for group in o.param_groups for p in group["params"])


def find_constant(model: nn.Module) -> tuple[list[str], int]:
    """Matrices and tables of vectors whose elements are all equal, and how many such weights there are."""
    tables = [
        (f"{path}.weight" if path else "weight", module._parameters.get("weight"))
        for path, module in model.named_modules()
        if isinstance(module, nn.Embedding) and module.embedding_dim > 1  # of numbers: biases, which may be zero
    ]
    constant, seen = set(), set()
    for name, weight in (*((m.name, m.weight) for m in list_matrices(model)), *tables):
        if not isinstance(weight, Tensor) or weight.numel() < 2 or not weight.requires_grad:
            continue
        if hasattr(weight, "full_tensor"):
            continue
        seen.add(name)
        flat = weight.detach().reshape(-1)[:_CONSTANT_LIMIT]
        if bool((flat == flat[0]).all()):
            constant.add(name)
    return [name for name, _ in model.named_parameters() if name in constant], len(seen)


def find_linear_pairs(model: nn.Module) -> list[str]:
    """Linear or convolutional layers that stand directly behind one another in an ``nn.Sequential``: without a
    non-linearity between them the two are one. A narrow middle (a low-rank factor) is intended and left out."""
    pairs = []
    for path, module in model.named_modules():
        if type(module) is not nn.Sequential:
            continue
        children = [(n, c) for n, c in module.named_children() if not isinstance(c, (nn.Identity, _DROPOUT, *_NORMS))]
        for (_, one), (name, two) in pairwise(children):
            if not isinstance(one, nn.Linear) or not isinstance(two, nn.Linear):
                continue
            if one.out_features >= min(one.in_features, two.out_features):
                pairs.append(f"{path}.{name}" if path else name)
    return pairs


def is_linear(model: nn.Module) -> bool:
    """Two layers or more, one behind the other, and nothing between them that bends."""
    inner = [m for m in model.modules() if any(True for _ in m.children())]
    leaves = [m for m in model.modules() if not any(True for _ in m.children())]
    layers = [m for m in leaves if isinstance(m, MATRICES)]
    plain = (*MATRICES, nn.Identity, nn.Flatten, nn.Unflatten, _DROPOUT, _BATCH_NORM, *_MEANS)
    return (
        len(layers) > 1 and all(type(m) is nn.Sequential for m in inner) and all(isinstance(m, plain) for m in leaves)
    )


def find_copies(model: nn.Module) -> list[str]:
    """An embedding and a layer of the same shape and numbers that are different parameters: they were meant to be
    tied and are not.
    Matrices whose elements are all equal are not copies of one another."""
    seen: dict[tuple[int, ...], tuple[str, Tensor, bool]] = {}
    for path, module in model.named_modules():
        weight = module._parameters.get("weight")
        if not isinstance(module, (nn.Embedding, nn.Linear)) or not isinstance(weight, Tensor) or is_lazy(weight):
            continue
        if (
            hasattr(weight, "full_tensor")
            or not weight.requires_grad
            or weight.device.type == "meta"
            or weight.numel() < 16
        ):
            continue
        first, one, embeds = seen.setdefault(
            tuple(weight.shape), (f"{path}.weight", weight, isinstance(module, nn.Embedding))
        )
        tie = embeds or isinstance(module, nn.Embedding)  # blocks of a transformer are often copies of one, on purpose
        if tie and one is not weight and one.device == weight.device and is_copy(one.detach(), weight.detach()):
            return [first, f"{path}.weight"]
    return []


def is_copy(one: Tensor, other: Tensor) -> bool:
    head, part = one.reshape(-1)[:1024], other.reshape(-1)[:1024]
    return bool((head != head[0]).any()) and torch.equal(head, part) and torch.equal(one, other)


def read_rate(optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, float]:
    """The learning rate before the first step, and whether a scheduler has set it."""
    group = next((group for o in optimizers for group in o.param_groups), {})
    rate = group.get("lr", 0.0)
    return {"static_rate": float(rate), "static_scheduled": float("initial_lr" in group)}


def ends_in_softmax(model: nn.Module) -> bool:
    """The last module of the (outermost) sequence is a softmax."""
    leaves = [m for m in model.modules() if not any(True for _ in m.children())]
    return bool(leaves) and isinstance(leaves[-1], (nn.Softmax, nn.Softmax2d))


def measure_modes(model: nn.Module, modules: Iterable[nn.Module]) -> dict[str, float]:
    """Is the model in training mode, and how many of the layers that care are not?"""
    idle_dropout = idle_norm = 0
    for module in modules:
        if not module.training:
            idle_dropout += isinstance(module, _DROPOUT)
            idle_norm += isinstance(module, _BATCH_NORM)
    modes = {"training": model.training, "eval_dropout": idle_dropout, "eval_batchnorm": idle_norm}
    return {name: float(value) for name, value in modes.items() if value or name == "training"}


def is_untrained(norm: nn.Module) -> bool:
    """Has this BatchNorm never seen a batch? Its statistics are those it was made with."""
    seen = getattr(norm, "num_batches_tracked", None)
    return isinstance(seen, Tensor) and seen.device.type != "meta" and int(seen) == 0


def find_mode_dependent(model: nn.Module) -> list[nn.Module]:
    """Layers that compute something else in eval mode: dropout that drops, BatchNorm with running statistics."""
    return [
        m
        for m in model.modules()
        if (isinstance(m, _DROPOUT) and m.p > 0) or (isinstance(m, _BATCH_NORM) and m.track_running_stats)
    ]


def dropout_of(module: nn.Module) -> float:
    """The share of units that a module drops: dropout itself, between the layers of a recurrent one, of attention weights."""
    if isinstance(module, _DROPOUT):
        return module.p
    between = isinstance(module, nn.RNNBase) and module.num_layers > 1
    return float(module.dropout) if between or isinstance(module, nn.MultiheadAttention) else 0.0  # type: ignore[arg-type]


def check_wiring(model: nn.Module, loss_fn: Any, optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, float]:
    """Everything of this file as numbers, for the record that starts a run."""
    constant, matrices = find_constant(model)
    norms = [m for m in model.modules() if isinstance(m, _BATCH_NORM)]
    leaves = [m for m in model.modules() if not any(True for _ in m.children())]
    momenta = [m.momentum for m in norms if m.momentum is not None and m.track_running_stats]
    numbers = {
        "static_sum": getattr(loss_fn, "reduction", "") == "sum",
        "static_unoptimized": len(find_unoptimised(model, optimizers)),
        "static_foreign": count_foreign(model, optimizers),
        "static_held": count_held(model, optimizers),
        "static_dropout": max([dropout_of(m) for m in model.modules()], default=0.0),
        "static_batchnorms": len(norms),
        "static_batchnorm_momentum": max(momenta, default=0.0),
        "static_constant": len(constant),
        "static_matrices": matrices,
        "static_softmax_last": ends_in_softmax(model),
        "static_linear_pairs": len(find_linear_pairs(model)),
        "static_linear": is_linear(model),
        "static_norm_first": bool(leaves) and isinstance(leaves[0], _NORMS),
        "static_mode_dependent": len(find_mode_dependent(model)),
        "static_training": model.training,
        "static_frozen": sum(not p.requires_grad for p in model.parameters()),
        "static_copies": len(find_copies(model)),
        "static_batchnorm_untrained": sum(is_untrained(m) for m in norms),
        **({"static_margin": loss_fn.margin} if isinstance(loss_fn, _TRIPLETS) else {}),
        **read_rate(optimizers),
    }
    return {name: float(value) for name, value in numbers.items()}


def name_wiring(model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, str]:
    """The names behind those numbers, for the header; at most fifty each."""
    fresh, frozen = find_fresh(model), {name for name, p in model.named_parameters() if not p.requires_grad}
    names = {
        "not optimized": find_unoptimised(model, optimizers),
        "constant weights": find_constant(model)[0],
        "linear pairs": find_linear_pairs(model),
        "copied weights": find_copies(model),
        "fresh weights": fresh,
        "frozen fresh weights": [name for name in fresh if name in frozen],
    }
    return {key: "\n".join(paths[:50]) for key, paths in names.items() if paths}

"""The weights of a network that multiply what comes in, whoever wrote the module that has them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

MATRICES = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_PLAIN = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_CELLS = (nn.RNNBase, nn.RNNCellBase)
_OWN_NAMES = ("weight", "kernel", "w")


class Matrix(NamedTuple):
    """``bounds``: of the uniform numbers that torch would begin it with, or that somebody would who counts from its other end."""

    name: str
    weight: Tensor
    bias: Tensor | None
    bounds: tuple[float, ...]


def list_matrices(model: nn.Module) -> Iterator[Matrix]:
    """Those that there are: lazy layers have none before their first batch."""
    for path, module in model.named_modules():
        prefix, kind = f"{path}." if path else "", type(module)
        own = {n: p for n, p in module._parameters.items() if isinstance(p, Tensor) and not is_lazy(p)}
        for name, weight in own.items():  # reading a parametrized one as an attribute computes it, and may change it
            if weight.dim() < 2:
                continue
            if isinstance(module, MATRICES) and name == "weight":
                bounds: tuple[float, ...] = (1 / math.sqrt(math.prod(weight.shape[1:])),) if kind in _PLAIN else ()
                yield Matrix(prefix + name, weight, own.get("bias"), bounds)
            elif isinstance(module, _CELLS):
                yield Matrix(prefix + name, weight, None, (1 / math.sqrt(module.hidden_size),))
            elif isinstance(module, nn.MultiheadAttention) and name.endswith("proj_weight"):
                yield Matrix(prefix + name, weight, own.get("in_proj_bias"), ())
            elif not kind.__module__.startswith("torch.") and _is_matrix(name, weight):
                bounds = tuple(1 / math.sqrt(size) for size in sorted(set(weight.shape)))
                yield Matrix(prefix + name, weight, own.get("bias", own.get("b")), bounds)


def _is_matrix(name: str, weight: Tensor) -> bool:
    """In a module of the user's: what has rows and columns and is called a weight. Tables of places and tokens are called
    otherwise."""
    called = name.lower().rstrip("0123456789").rstrip("_")
    return weight.dim() == 2 and min(weight.shape) > 1 and called in _OWN_NAMES

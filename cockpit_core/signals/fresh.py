"""Weights that are as torch's default initialisation makes them: nothing has been trained into them yet."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_LEAST, _MOST = 64, 4_000_000  # elements: with fewer the length says little, with more only a part is looked at


def find_fresh(model: nn.Module) -> list[str]:
    """Their names. Uniform within 1 / sqrt(inputs of a unit): no element is beyond it, and the length is that of such
    numbers.
    Training takes some elements beyond within a few steps."""
    return [name for name, weight, bound in _list_weights(model) if is_uniform(weight, bound)]


def _list_weights(model: nn.Module) -> Iterator[tuple[str, Tensor, float]]:
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        if type(module) in _LAYERS:
            weight = module._parameters.get("weight")
            if isinstance(weight, Tensor) and weight.dim() > 1:
                yield f"{prefix}weight", weight, 1 / math.sqrt(math.prod(weight.shape[1:]))
        elif isinstance(module, nn.RNNBase):
            for name, weight in module._parameters.items():
                if isinstance(weight, Tensor) and weight.dim() > 1:
                    yield prefix + name, weight, 1 / math.sqrt(module.hidden_size)


def is_uniform(weight: Tensor, bound: float) -> bool:
    if not weight.numel() >= _LEAST or hasattr(weight, "full_tensor") or weight.device.type == "meta":
        return False
    flat = weight.detach().reshape(-1)[:_MOST].float()
    largest, size = torch.stack([flat.abs().max(), flat.square().mean().sqrt()]).tolist()
    return largest <= 1.0001 * bound and abs(size * math.sqrt(3) / bound - 1) < 0.08 + 1 / math.sqrt(flat.numel())

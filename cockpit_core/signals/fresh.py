"""Weights that are as an initialisation makes them: nothing has been trained into them yet."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from cockpit_core.signals.matrices import list_matrices

_LEAST, _MOST = 64, 4_000_000  # elements: with fewer the length says little, with more only a part is looked at
_FLAT, _BELL = 1.8, 3.0  # mean fourth power over the square of the mean square: of uniform and of normal numbers


def find_fresh(model: nn.Module) -> list[str]:
    """Their names. Torch's default: uniform within 1 / sqrt(inputs of a unit), no element beyond it, and as long as such numbers
    are; training takes some elements beyond within a few steps. Other usual ones (He, Glorot, 0.02): uniform or normal numbers
    beside biases that are all zero, as training leaves no bias."""
    return [
        m.name
        for m in list_matrices(model)
        if any(is_uniform(m.weight, bound) for bound in m.bounds) or is_drawn(m.weight, m.bias)
    ]


def _can_be_read(tensor: Tensor) -> bool:
    return not hasattr(tensor, "full_tensor") and tensor.device.type != "meta"


def is_uniform(weight: Tensor, bound: float) -> bool:
    if not weight.numel() >= _LEAST or not _can_be_read(weight):
        return False
    flat = weight.detach().reshape(-1)[:_MOST].float()
    largest, size = torch.stack([flat.abs().max(), flat.square().mean().sqrt()]).tolist()
    return largest <= 1.0001 * bound and abs(size * math.sqrt(3) / bound - 1) < 0.08 + 1 / math.sqrt(flat.numel())


def is_drawn(weight: Tensor, bias: Tensor | None) -> bool:
    """Independent uniform or normal numbers around zero, of any size, and biases that are all zero."""
    if bias is None or not weight.numel() >= _LEAST or not (_can_be_read(weight) and _can_be_read(bias)):
        return False
    if bias.detach().any():  # looked at first: trained networks are large
        return False
    flat = weight.detach().reshape(-1)[:_MOST].float()
    squares = flat.square()
    mean, square, fourth = torch.stack([flat.mean(), squares.mean(), squares.square().mean()]).tolist()
    if not square > 0:
        return False
    error = 1 / math.sqrt(flat.numel())
    shape = fourth / square**2
    near = shape < _FLAT + 0.1 + 4 * error or abs(shape - _BELL) < 0.1 + 20 * error
    return near and abs(mean) < 5 * error * math.sqrt(square)

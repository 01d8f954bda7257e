"""How the benchmark's networks begin."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

Fill = Callable[[Tensor], Tensor]
WITH_WEIGHT = (nn.Linear, nn.Conv2d, nn.ConvTranspose2d)


def truncated_normal(model: nn.Module, deviation: float, bias: float) -> nn.Module:
    """Normal, cut at two standard deviations."""
    return fill(model, lambda w: nn.init.trunc_normal_(w, 0.0, deviation, -2 * deviation, 2 * deviation), bias)


def fill(model: nn.Module, weight: Fill, bias: float = 0.0, dense: Fill | None = None) -> nn.Module:
    """All weights by one rule, those of dense layers by ``dense`` if there is one; all biases by a constant."""
    for module in model.modules():
        if isinstance(module, WITH_WEIGHT):
            (dense if dense and isinstance(module, nn.Linear) else weight)(module.weight)
            if module.bias is not None:
                nn.init.constant_(module.bias, bias)
    return model

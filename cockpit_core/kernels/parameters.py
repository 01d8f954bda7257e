"""The parameter's side of the 2D histogram: computed once per step, used for every sample."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cockpit_core.foundation.ungraded import ungraded
from cockpit_core.kernels.bins import PARAMETER_EXTRA, Spec
from cockpit_core.kernels.plain import categorise, widen


@dataclass(frozen=True)
class ParameterBins:
    """The parameter category of each element, [size] in the order of ``parameter.reshape(-1)``, as uint8 where that
    is enough.

    ``below``, ``above`` and ``not_finite`` say how many elements lie outside the parameter bins.
    """

    categories: Tensor
    shape: tuple[int, ...]
    count: int

    def _number(self, category: int) -> int:
        return int((self.categories == category).sum())

    @property
    def below(self) -> int:
        return self._number(0)

    @property
    def above(self) -> int:
        return self._number(self.count + 1)

    @property
    def not_finite(self) -> int:
        return self._number(self.count + 2)


@ungraded
def prepare_parameter(parameter: Tensor, spec: Spec) -> ParameterBins | None:
    """Find each element's parameter bin (same rule as for gradients); None where no 2D histogram is asked for."""
    if spec.joint is None:
        return None
    bins = spec.joint[1]
    if not parameter.is_floating_point():
        raise TypeError(f"parameters must be floating point, got {parameter.dtype}")
    categories = categorise(widen(parameter.detach().reshape(-1)), bins).clamp_(max=bins.count + 2)
    small = torch.uint8 if bins.count + PARAMETER_EXTRA <= 256 else torch.int16
    return ParameterBins(categories.to(small), tuple(parameter.shape), bins.count)

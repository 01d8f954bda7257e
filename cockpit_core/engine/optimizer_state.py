"""What the optimizer keeps for each parameter: read where it lies, never copied, never changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from cockpit_core.quantities.measured import ParameterState


def read_states(
    optimizers: Iterable[torch.optim.Optimizer], parameters: Mapping[str, Tensor]
) -> dict[str, ParameterState]:
    """By parameter name, for those that an optimizer moves. ``state`` is empty before its first step."""
    names, states = {id(p): name for name, p in parameters.items()}, {}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            options = {key: value for key, value in group.items() if key != "params"}
            for p in group["params"]:
                if id(p) in names:
                    states[names[id(p)]] = ParameterState(type(optimizer), options, optimizer.state.get(p, {}))
    return states

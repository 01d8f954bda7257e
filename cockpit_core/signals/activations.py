"""Units that answer to no sample, units at the end of their range, and the scale of each layer's activations."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn

from cockpit_core.signals.reading import Steps, signal

SAMPLES, POSITIONS, UNITS = 16, 8, 512
MOST = 16  # how many modules are looked at; in deeper networks they are evenly spread

some, every = np.logical_or.reduce, np.logical_and.reduce
_NAMES = ("relu", "gelu", "silu", "swish", "mish", "elu", "tanh", "sigmoid", "softplus", "activation")
_BOUNDED = {"sigmoid": (0.0, 1.0), "tanh": (-1.0, 1.0), "hardtanh": (-1.0, 1.0), "hardsigmoid": (0.0, 1.0)}
_CONSUMERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


class Activity(NamedTuple):
    """For one module: share of units that are constant over samples and positions (in a bounded range only at its
    ends, because in the middle not the unit is dead but what reaches it), share of values within 1 % of the ends of a
    bounded range (NaN:
    not bounded), root mean square."""

    dead: float
    saturated: float
    rms: float


def is_activation(module: nn.Module) -> bool:
    name = type(module).__name__.lower()
    return not any(True for _ in module.children()) and any(part in name for part in _NAMES)


def choose_modules(model: nn.Module) -> dict[nn.Module, tuple[str, bool]]:
    """Modules to look at, with their path, and whether at their output. Activation functions at their output; where a
    network has none as modules, the inputs of its linear and convolutional layers."""
    paths = {module: path for path, module in model.named_modules()}
    chosen = {module: (path, True) for module, path in paths.items() if is_activation(module)}
    if not chosen:
        chosen = {module: (path, False) for module, path in paths.items() if type(module) in _CONSUMERS}
    step = max(1, math.ceil(len(chosen) / MOST))
    return {module: item for i, (module, item) in enumerate(chosen.items()) if i % step == 0}


@signal
def measure_activity(value: Any, module: nn.Module) -> Steps[Activity | None]:
    """None where there are too few samples to say anything, or no floating point tensor."""
    if not isinstance(value, Tensor) or not value.is_floating_point() or value.dim() < 2 or not value.numel():
        return None
    kind = type(module).__name__.lower()
    layouts = [subsample(value.detach(), 1)]
    if value.dim() == 3:  # [B, C, L] of a convolution or [B, T, C] of a transformer: the milder reading counts
        layouts.append(subsample(value.detach(), 2))
    if any(x.shape[0] * x.shape[2] < 4 for x in layouts):
        return None
    values = yield layouts
    shares = [share_of_dead(x, kind) for x in values]
    x = values[0]
    saturated = float(_at_end(x, kind).mean()) if kind in _BOUNDED else math.nan
    flat = x.reshape(-1)
    return Activity(min(shares), saturated, float(np.sqrt(float(flat @ flat) / flat.size)))


def share_of_dead(x: np.ndarray, kind: str) -> float:
    """The share of dead units in [samples, units, positions]."""
    varies = some(x[-1] != x[0], 1)  # two samples are enough for most units
    if not every(varies):
        rest = x[:, ~varies]
        varies[~varies] = some(some(rest != rest[:1, :, :1], 0), 1)  # numpy is slow for two dimensions at once
    if kind in _BOUNDED:
        varies |= ~_at_end(x[0, :, 0], kind)
    return (len(varies) - int(np.count_nonzero(varies))) / len(varies)


def subsample(x: Tensor, channel: int) -> Tensor:
    """[samples, units, positions], each evenly spread over what there is."""
    x = x[:: max(1, x.shape[0] // SAMPLES)][:SAMPLES] if x.shape[0] > SAMPLES else x
    x = x.movedim(channel, 1) if channel != 1 else x
    x = x if x.dim() == 3 else x.reshape(x.shape[0], x.shape[1], -1)
    if x.shape[1] >= 2 * UNITS or x.shape[2] >= 2 * POSITIONS:
        x = x[:, :: max(1, x.shape[1] // UNITS), :: max(1, x.shape[2] // POSITIONS)]
    return x if x.dtype.itemsize >= 4 else x.float()


def _at_end(x: np.ndarray, kind: str) -> np.ndarray:
    """Which values are within 1 % of the ends of their range."""
    low, high = _BOUNDED[kind]
    margin = 0.01 * (high - low)
    return (x < low + margin) | (x > high - margin)


def summarise(activities: list[Activity]) -> dict[str, float]:
    """The worst of all modules and where it is, and how the scale changes from the first to the last."""
    if not activities:
        return {}
    dead = max(range(len(activities)), key=lambda i: activities[i].dead)
    numbers = {"dead": activities[dead].dead, "dead_where": float(dead)}
    bounded = [i for i, activity in enumerate(activities) if not math.isnan(activity.saturated)]
    if bounded:
        worst = max(bounded, key=lambda i: activities[i].saturated)
        numbers |= {"saturated": activities[worst].saturated, "saturated_where": float(worst)}
    scales = [activity.rms for activity in activities]
    numbers |= {"activation_first": scales[0], "activation_last": scales[-1]}
    return {name: float(value) for name, value in numbers.items() if math.isfinite(value)}

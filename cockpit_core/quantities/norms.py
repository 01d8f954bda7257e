"""L2 norms of several tensors at once, and of the network: a norm of the whole, not a sum of norms."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from torch import Tensor

from cockpit_core.foundation import long_sums
from cockpit_core.foundation.sharded import is_sharded, norms_of_shards
from cockpit_core.foundation.transfer import Transfer
from cockpit_core.foundation.ungraded import Ungraded
from cockpit_core.kernels.native import striding
from cockpit_core.quantities.base import NoValue, Value

K = TypeVar("K")


def measure_norms(tensors: Mapping[K, Tensor], transfer: Transfer | None = None) -> dict[K, float]:
    """``||x||_2`` of each tensor, with one transfer from the device (and one message, if they are sharded)."""
    return ask_norms(tensors, transfer or Transfer())()


def ask_norms(tensors: Mapping[K, Tensor], transfer: Transfer) -> Callable[[], dict[K, float]]:
    """The same, not read yet: they are transferred with whatever else is asked for until then."""
    if not tensors:
        return dict
    if (lengths := striding.try_lengths(list(tensors.values()))) is not None:
        return lambda: dict(zip(tensors, lengths, strict=True))
    measure = norms_of_shards if is_sharded(next(iter(tensors.values()))) else long_sums.norms
    asked = transfer.ask([measure(list(tensors.values()))])
    return lambda: dict(zip(tensors, asked.read()[0].numpy().tolist(), strict=True))


def measure_places(
    now: Mapping[str, Tensor], start: Mapping[str, Tensor], transfer: Transfer
) -> tuple[dict[str, float], dict[str, float]]:
    """The length of each parameter, and how far it is from where the run began; with one transfer for both. What lies here is
    read once for both."""
    apart = striding.try_apart(list(now.values()), [start.get(name) for name in now], [None] * len(now))
    if apart is None:
        return measure_rest(now, start, transfer)
    own = {name: length for name, (length, _) in zip(now, apart, strict=True)}
    return own, {name: away for name, (_, away) in zip(now, apart, strict=True) if name in start}


def measure_rest(
    now: Mapping[str, Tensor], start: Mapping[str, Tensor], transfer: Transfer
) -> tuple[dict[str, float], dict[str, float]]:
    names = [name for name in now if name in start]
    pairs = [now[n] for n in names], [start[n] for n in names]
    if not any(is_sharded(x) or long_sums.is_long(x, x.numel()) for x in now.values()):
        with Ungraded():
            apart = torch._foreach_sub(*pairs) if names else ()
        (both,) = transfer.ask([long_sums.norms([*now.values(), *apart])]).read() if now else (torch.zeros(0),)
        lengths = both.numpy().tolist()
        return dict(zip(now, lengths, strict=False)), dict(zip(names, lengths[len(now) :], strict=True))
    own = ask_norms(now, transfer)
    if any(is_sharded(tensor) for side in pairs for tensor in side):
        moved = ask_norms(dict(zip(names, torch._foreach_sub(*pairs), strict=True)), transfer)
        return own(), moved()
    asked = transfer.ask([long_sums.differences(*pairs, keep=False)[1]])
    return own(), dict(zip(names, asked.read()[0].numpy().tolist(), strict=True))


def combine(layers: Mapping[str, float]) -> float:
    return math.sqrt(sum(norm * norm for norm in layers.values()))


def norm_value(layers: dict[str, float]) -> Value:
    if not layers:
        raise NoValue("no parameter has a gradient")
    return Value(combine(layers), layers)

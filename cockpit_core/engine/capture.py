"""What one backward pass leaves behind: for each call of a hooked module the gradients of its outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from cockpit_core.engine.cover import Cover
from cockpit_core.layers.attention import self_attention
from cockpit_core.layers.contribution import Contribution, Rows, Summed
from cockpit_core.layers.fallback import fallback, flatten_tensors
from cockpit_core.layers.registry import Call, NotCovered, find_rule


@dataclass(eq=False)
class Captured:
    """One call and what came back to it; contributions are made once and shared by its parameters."""

    call: Call
    names: list[str]
    gradients: dict[int, Tensor] = field(default_factory=dict)
    contributions: dict[str, Contribution] | None = None
    waiting: set[str] = field(default_factory=set)


@dataclass(eq=False)
class Pass:
    """One backward pass: its samples, the factor on its loss, and its captured calls."""

    task: int
    batch_size: int = 0
    losses: Tensor | None = None
    loss: float = 0.0
    no_losses: str = ""
    curved: bool = False
    accumulated: bool = False
    """Some parameter's gradient was added to: False means the user called ``torch.autograd.grad``, no training."""
    captured: dict[int, Captured] = field(default_factory=dict)
    by_parameter: dict[str, list[tuple[Captured, str]]] = field(default_factory=dict)
    direct: dict[str, Tensor] = field(default_factory=dict)
    """Individual gradients [B, *shape] of parameters that are broadcast over the batch (see ``broadcast``)."""

    def add(self, call: Call, names: list[str], cover: Cover, position: int, gradient: Tensor) -> None:
        held = self.captured.get(id(call))
        if held is None:
            held = self.captured[id(call)] = Captured(call, names, waiting=set(names))
            own = dict(call.module.named_parameters(remove_duplicate=False))
            for local in names:
                self.by_parameter.setdefault(cover.names[id(own[local])], []).append((held, local))
        before = held.gradients.get(position) if call.adds_up else None
        held.gradients[position] = gradient if before is None else before + gradient


def make_contributions(
    held: Captured,
    scale: float,
    cover: Cover,
    keep_bytes: int,
    mute: Callable[[], Any],
    gradients: dict[int, Tensor] | None = None,
) -> dict[str, Contribution]:
    """The contributions of one call, by local parameter name: the module's rule, or the generic fallback."""
    call, seeds = held.call, held.gradients if gradients is None else gradients
    call.check_unchanged()
    with torch.no_grad():
        ruled = [local for local in held.names if cover.has_rule(call.module, local)]
        rest = [local for local in held.names if local not in ruled]
        parts: dict[str, Contribution] = {}
        if ruled:
            rule = find_rule(call.module)
            assert rule is not None
            parts = {name: part for name, part in rule(call, seeds[0], scale).items() if name in ruled}
        if rest and type(call.module).forward is nn.MultiheadAttention.forward:
            known = self_attention(call, seeds, scale) or {}
            parts |= {local: known[local] for local in rest if local in known}
            rest = [local for local in rest if local not in known]
        if rest:
            method = call.method
            parts |= fallback(call, seeds, rest, scale, keep_bytes, mute)
            call.method = "fallback" if not ruled else method
    return parts


def contribution_of(
    found: Pass, name: str, scale: float, cover: Cover, keep_bytes: int, mute: Callable[[], Any]
) -> Contribution:
    """``g_n`` of one parameter in one pass, all its uses summed per sample."""
    if name in found.direct:
        return Rows(found.direct[name], cover.parameters[name].shape, scale)
    parts = []
    for held, local in found.by_parameter.get(name, ()):
        if held.contributions is None:
            held.contributions = make_contributions(held, scale, cover, keep_bytes, mute)
        parts.append(held.contributions[local])
        held.waiting.discard(local)
    if not parts:
        raise NotCovered("no call of its module was seen in the backward pass: the weight is used by a function")
    if any(part.samples != parts[0].samples for part in parts):
        raise NotCovered("its uses see different numbers of samples")
    return parts[0] if len(parts) == 1 else Summed(parts)


def free(found: Pass, name: str) -> None:
    """Drop what only this parameter still needed."""
    found.direct.pop(name, None)
    for held, _ in found.by_parameter.pop(name, ()):
        if not held.waiting:
            found.captured.pop(id(held.call), None)
            held.contributions = None
            held.gradients = {}


def find_batch_size(values: Any, batch_dim: int) -> int | None:
    """The number of samples: the size of the first tensor among the model's inputs that has the batch dimension."""
    if isinstance(values, Tensor):
        return int(values.shape[batch_dim]) if values.dim() > batch_dim else None
    if isinstance(values, dict) or hasattr(values, "keys"):
        values = list(values.values())
    if isinstance(values, (list, tuple)):
        for value in values:
            size = find_batch_size(value, batch_dim)
            if size is not None:
                return size
    return None


def detach_inputs(values: Any) -> Any:
    """The same structure without the graph; tensors share their memory."""
    if isinstance(values, Tensor):
        return values.detach()
    if isinstance(values, tuple) and hasattr(values, "_fields"):
        return type(values)(*(detach_inputs(value) for value in values))
    if isinstance(values, (tuple, list)):
        return type(values)(detach_inputs(value) for value in values)
    if type(values) is dict:
        return {key: detach_inputs(value) for key, value in values.items()}
    return values


def make_call(module: nn.Module, args: tuple, kwargs: dict, batch_size: int, batch_dim: int, states: Any) -> Call:
    inputs, named = detach_inputs(args), detach_inputs(kwargs)
    versions = tuple((t, t._version) for t in flatten_tensors((inputs, named)))  # a detached tensor shares its counter
    return Call(module, inputs, named, batch_size, batch_dim, versions, states, module.training)

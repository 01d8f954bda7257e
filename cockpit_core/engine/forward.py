"""One call of the model, and how to repeat it: the only way to a repeated forward pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from cockpit_core.engine.detaching import detach_inputs
from cockpit_core.layers import random_state
from cockpit_core.layers.module_state import ModuleState, NotRepeatable
from cockpit_core.layers.random_state import RandomState
from cockpit_core.layers.seeds import copy_inputs, flatten_tensors


@dataclass(eq=False)
class Forward:
    """One call of the model: what it takes to repeat it, and the gradients that came back to its outputs."""

    args: tuple
    kwargs: dict
    batch_size: int
    state: ModuleState
    random_state: RandomState
    autocast: list[tuple[str, torch.dtype]]
    versions: list[tuple[Tensor, int]]
    gradients: dict[int, Tensor] = field(default_factory=dict)
    outputs: list[tuple[Tensor, int]] = field(default_factory=list)
    """What it gave, without the graph, and the version of each: a repetition must give the same."""
    number: int = 0
    """Which call of the model it was."""
    draws: bool = False
    """It drew random numbers when it was repeated."""

    @classmethod
    def of(cls, model: nn.Module, args: tuple, kwargs: dict, batch_size: int) -> Forward:
        inputs, named = detach_inputs(args), detach_inputs(kwargs)
        tensors = flatten_tensors((inputs, named))
        devices = {"cpu", *(tensor.device.type for tensor in tensors)}
        autocast = [
            (device, torch.get_autocast_dtype(device)) for device in devices if torch.is_autocast_enabled(device)
        ]
        versions = [(tensor, tensor._version) for tensor in tensors]
        return cls(inputs, named, batch_size, ModuleState(model), random_state.take(tensors), autocast, versions)

    def repeat(
        self, model: nn.Module, args: tuple | None = None, kwargs: dict | None = None, *, same: bool = True
    ) -> Any:
        """The model's output once more: copies of all that it keeps, the same random state and precision.

        On the whole batch (no ``args``) at the same parameters the output must be what it was. The user's hooks on
        modules stay silent, unless it is another one without them.
        """
        result = self._run(model, args, kwargs, hooks=False)
        if same and args is None and not self.is_same(result):
            if self.state.has_hooks:
                result = self._run(model, args, kwargs, hooks=True)
            if not self.is_same(result):
                raise NotRepeatable("the model gives other outputs when its forward pass is repeated")
        return result

    def _run(self, model: nn.Module, args: tuple | None, kwargs: dict | None, *, hooks: bool) -> Any:
        with self.setting(model, args, kwargs, hooks=hooks) as (inputs, named):
            result = model(*inputs, **named)
            self.draws = not random_state.is_same(self.random_state, random_state.take(self.tensors()))
            return result

    @contextmanager
    def setting(
        self, model: nn.Module, args: tuple | None = None, kwargs: dict | None = None, *, hooks: bool = False
    ) -> Iterator[tuple[tuple, dict]]:
        """Everything as when the call began, with its arguments to call the model with; afterwards as it is now."""
        if any(tensor._version != version for tensor, version in self.versions):
            raise NotRepeatable("the model's inputs were changed in place after the forward pass")
        with torch.enable_grad():
            inputs = copy_inputs(self.args if args is None else args)
            named = copy_inputs(self.kwargs if kwargs is None else kwargs)
        with ExitStack() as stack:
            for device, dtype in self.autocast:
                stack.enter_context(torch.autocast(device, dtype, cache_enabled=False))  # of other parameters
            stack.enter_context(unwritten(model))
            stack.enter_context(self.state.installed(hooks=hooks))
            stack.enter_context(random_state.restored(self.random_state))
            stack.enter_context(torch.enable_grad())
            yield inputs, named

    def is_same(self, result: Any) -> bool:
        """Up to rounding, because attention may have used another kernel. Outputs that were written into since do not
        count."""
        tensors = flatten_tensors(result)
        if self.outputs and len(tensors) != len(self.outputs):
            return False
        pairs = [
            (a.detach(), b) for a, (b, version) in zip(tensors, self.outputs, strict=False) if b._version == version
        ]
        return all(a.shape == b.shape and is_close(a, b) for a, b in pairs)

    def tensors(self) -> list[Tensor]:
        return [tensor for tensor, _ in self.versions]


SAME = {torch.float64: 1e-8, torch.float32: 1e-3}
"""How far apart, relatively, outputs may be that were computed twice."""


def is_close(value: Tensor, known: Tensor) -> bool:
    away = torch.linalg.vector_norm((value - known).double())
    length = torch.linalg.vector_norm(known.double())
    return bool(away <= SAME.get(known.dtype, 5e-2) * length.clamp(min=1e-30)) or not bool(torch.isfinite(length))


@contextmanager
def unwritten(model: nn.Module) -> Iterator[None]:
    """A forward pass that writes into its parameters (weights that are normalised in place) leaves no trace in them, nor one that
    freezes them."""
    own = [(p, p.data, p.detach().clone(), p._version) for p in model.parameters()]
    trained = [(p, p.requires_grad) for p in model.parameters()]
    try:
        yield
    finally:
        for p, needed in trained:
            if p.requires_grad != needed:
                p.requires_grad_(needed)
        written = [put_back(*one) for one in own]
        if any(written):
            raise NotRepeatable("its forward pass writes into its parameters")


def put_back(p: Tensor, data: Tensor, value: Tensor, version: int) -> bool:
    """Was it written into? Then it has its memory, values and version again: the user's graph may need them."""
    moved = p.data.data_ptr() != data.data_ptr()
    if moved:
        p.data = data
    changed = p._version != version or not torch.allclose(data, value, rtol=0, atol=0, equal_nan=True)
    if changed:
        data.copy_(value)
        torch._C._autograd._unsafe_set_version_counter((p,), (version,))
    return moved or changed


@contextmanager
def at(parameters: Mapping[str, Tensor], values: dict[str, Tensor]) -> Iterator[None]:
    """The parameters have other values for a moment; their own memory is put back untouched."""
    own = {name: parameters[name].data for name in values}
    try:
        for name, value in values.items():
            parameters[name].data = value
        yield
    finally:
        for name, data in own.items():
            parameters[name].data = data

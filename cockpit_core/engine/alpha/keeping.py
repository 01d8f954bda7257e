"""What Alpha keeps from the backward pass until the step is known, within the memory budget.

``g_n . s`` needs the individual gradients of a step that the optimizer has not taken yet. For each parameter the smaller
of two exact things is kept: what its gradients are made of (inputs and output gradients of its layer), or, where they were
formed anyway and take less, the gradients. What does not fit the budget is not kept: once the step is known, the forward
and the backward pass are repeated at the parameters before the step, and each layer is projected as it comes by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from cockpit_core.engine.capture import Captured, Pass, detach_inputs, make_call, make_contributions
from cockpit_core.engine.statistics import project
from cockpit_core.layers import random_state
from cockpit_core.layers.contribution import Contribution, Rows
from cockpit_core.layers.fallback import ModuleGradients, copy_inputs, external_seeds, flatten_tensors
from cockpit_core.layers.module_state import ModuleState, NotRepeatable
from cockpit_core.layers.random_state import RandomState
from cockpit_core.layers.registry import Call

if TYPE_CHECKING:
    from cockpit_core.engine.engine import Engine


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
                stack.enter_context(torch.autocast(device, dtype))
            stack.enter_context(unwritten(model))
            stack.enter_context(self.state.installed(hooks=hooks))
            stack.enter_context(random_state.restored(self.random_state))
            stack.enter_context(torch.enable_grad())
            yield inputs, named

    def is_same(self, result: Any) -> bool:
        """Up to rounding: attention may have taken another kernel. Outputs that were written into since tell nothing."""
        found = flatten_tensors(result)
        if self.outputs and len(found) != len(self.outputs):
            return False
        pairs = [(a.detach(), b) for a, (b, version) in zip(found, self.outputs, strict=False) if b._version == version]
        return all(a.shape == b.shape and is_close(a, b) for a, b in pairs)

    def tensors(self) -> list[Tensor]:
        return [tensor for tensor, _ in self.versions]


SAME = {torch.float64: 1e-8, torch.float32: 1e-3}
"""How far outputs may be apart, relatively, that were computed twice."""


def is_close(found: Tensor, known: Tensor) -> bool:
    away = torch.linalg.vector_norm((found - known).double())
    length = torch.linalg.vector_norm(known.double())
    return bool(away <= SAME.get(known.dtype, 5e-2) * length.clamp(min=1e-30)) or not bool(torch.isfinite(length))


@contextmanager
def unwritten(model: nn.Module) -> Iterator[None]:
    """A forward pass that writes into its parameters (weights that are normalised in place) leaves no trace in them."""
    own = [(p, p.data, p.detach().clone(), p._version) for p in model.parameters()]
    try:
        yield
    finally:
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


class Kept:
    """Of one step: the contributions that wait for it, and the parameters whose turn comes in the repetition."""

    def __init__(self, budget: int) -> None:
        self.budget, self.bytes = budget, 0
        self.parts: dict[str, list[Contribution]] = {}
        self.repeated: dict[str, int] = {}  # name -> bytes that were not kept
        self.storages: set[int] = set()

    def add(self, name: str, parts: list[Contribution], *, may_repeat: bool) -> None:
        storages = {pointer: size for part in parts for pointer, size in storages_of(part)}
        size = sum(size for pointer, size in storages.items() if pointer not in self.storages)
        if may_repeat and self.bytes + size > self.budget:
            self.repeated[name] = size
            return
        self.bytes += size
        self.storages |= set(storages)
        self.parts[name] = parts
        for part in parts:
            part.hold()

    def clear(self) -> None:
        self.__init__(self.budget)  # type: ignore[misc]


def storages_of(value: Any) -> Iterator[tuple[int, int]]:
    """(address, bytes) of all memory that a contribution keeps alive. Parameters and buffers are there anyway."""
    if isinstance(value, Tensor):
        storage = value.untyped_storage()
        yield storage.data_ptr(), storage.nbytes()
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from storages_of(item)
    elif isinstance(value, dict):
        yield from storages_of(list(value.values()))
    elif isinstance(value, (Contribution, ModuleGradients, Call)):
        for name, item in vars(value).items():
            if name not in ("state", "random_state"):  # small, and nested
                yield from storages_of(item)


def rows_are_smaller(part: Contribution) -> bool:
    """Do its individual gradients take less memory than what they are made of?"""
    if isinstance(part, Rows):
        return False
    formed = part.samples * part.shape.numel() * 4  # bytes, of the usual single precision
    return formed < sum(dict(storages_of(part)).values())


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


class Repetition:
    """Forward and backward of one pass once more; ``g_n . s`` of the wanted parameters is taken layer by layer."""

    def __init__(self, engine: Engine, update: dict[str, Tensor], scale: float):
        self.engine, self.update, self.scale = engine, update, scale
        self.slopes: dict[str, Tensor] = {}
        self.outputs: dict[int, int] = {}
        self.waiting: dict[int, Captured] = {}
        self.number, self.seen = 0, -1

    def next_place(self) -> tuple[int, int]:
        """Of the call that comes: the call of the model it belongs to, and which one in it."""
        self.seen += 1
        return self.number, self.seen

    def run(self, found: Pass) -> dict[str, Tensor]:
        forward, engine = found.forwards[0], self.engine
        self.number = forward.number
        result = forward.repeat(engine.cover.model)
        outputs, gradients = dict(enumerate(flatten_tensors(result))), forward.gradients
        if any(k not in outputs or outputs[k].shape != b.shape for k, b in gradients.items()):
            raise NotRepeatable("the model gives other outputs when its forward pass is repeated")
        call = make_call(
            engine.cover.model, forward.args, forward.kwargs, forward.batch_size, engine.batch_dim, None, result
        )
        with engine.mute():
            seeds = external_seeds({k: outputs[k] for k in gradients}, gradients, call)
        wanted = [engine.cover.parameters[name] for name in self.update]
        ends = [(outputs[k], seed.to(outputs[k].dtype)) for k, seed in seeds.items()]
        try:
            torch.autograd.grad([out for out, _ in ends], wanted, [seed for _, seed in ends], allow_unused=True)
        except RuntimeError as error:  # checkpointing of the reentrant kind
            raise NotRepeatable(f"its backward pass cannot be repeated: {error}") from error
        for held in self.waiting.values():
            self._project(held)
        return self.slopes

    def saw(self, call: Call, outputs: int) -> None:
        self.outputs[id(call)] = outputs

    def take(self, call: Call, names: list[str], position: int, gradient: Tensor) -> None:
        held = self.waiting.setdefault(id(call), Captured(call, names))
        held.gradients[position] = gradient
        if self.outputs.get(id(call)) == 1 and not call.adds_up:
            self._project(self.waiting.pop(id(call)))

    def _project(self, held: Captured) -> None:
        engine, own = self.engine, dict(held.call.module.named_parameters(remove_duplicate=False))
        held.names = [local for local in held.names if engine.cover.names[id(own[local])] in self.update]
        if held.names:
            made = make_contributions(held, self.scale, engine.cover, engine.memory_budget, engine.mute)
            for local, part in made.items():
                name = engine.cover.names[id(own[local])]
                slopes = project(part, self.update[name])
                self.slopes[name] = self.slopes[name] + slopes if name in self.slopes else slopes
        held.call.release()


def project_again(
    engine: Engine,
    names: list[str],
    update: dict[str, Tensor],
    gradients: dict[str, Tensor],
    tolerance: Callable[[Tensor], float],
) -> dict[str, Tensor]:
    """``g_n . s`` [B] of parameters that were not kept: all passes of the step are repeated, before the step's move."""
    state = engine.step
    wanted, size = {name: update[name] for name in names}, engine.forward_size
    parts: dict[str, list[Tensor]] = {name: [] for name in names}
    try:
        with at(engine.cover.parameters, state.theta), engine.undisturbed():
            for found in state.passes:
                engine.repetition = Repetition(engine, wanted, state.batch_size / state.loss_scale)
                engine.forward_size = found.forwards[0].batch_size
                seen = engine.repetition.run(found)
                for name in names:
                    if name not in seen:
                        raise NotRepeatable(f"{name} was not seen when the forward pass was repeated")
                    parts[name].append(seen[name])
    finally:
        engine.repetition, engine.forward_size = None, size
    slopes = {name: torch.cat(found) for name, found in parts.items()}
    for name in [name for name in names if name in gradients]:
        check_mean(name, slopes[name], gradients[name], update[name], tolerance(gradients[name]))
    return slopes


def check_mean(name: str, slopes: Tensor, gradient: Tensor, step: Tensor, tolerance: float) -> None:
    """The slopes average to ``g . s``, which is known: a repetition that took another course shows here."""
    expected = float(torch.linalg.vecdot(gradient.reshape(-1).double(), step.reshape(-1).double()))
    mean, scale = float(slopes.mean()), float(slopes.abs().mean())
    if abs(mean - expected) > tolerance * (scale + abs(expected)):
        raise NotRepeatable(f"the forward pass did not come out the same when it was repeated (seen at {name})")

"""Individual gradients of a module without a rule: a vector-Jacobian product of that one module, sample by sample.

The module runs once more, on copies of all that it keeps, as it was before the user's call (``module_state``).

Two exact ways. ``vmap`` runs the module on one sample at a time in one vectorised call; it needs a module that draws no
random numbers and mixes no samples. ``masked`` runs the module once more on the whole batch, with the random state of
the user's call, and pulls back the output gradient of one sample at a time; it covers everything that can be
differentiated, and gives contributions where samples mix. Which one is right is decided by the check that contributions
add up to ``p.grad``.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from cockpit_core.foundation.sharded import contains_sharded_modules, has_peers
from cockpit_core.layers.contribution import Contribution
from cockpit_core.layers.module_state import ModuleState, NotRepeatable
from cockpit_core.layers.random_state import is_same, restored
from cockpit_core.layers.registry import Call, NotCovered, of_outputs
from cockpit_core.layers.scratch import Scratch
from cockpit_core.layers.seeds import (
    copy_inputs,
    external_seeds,
    flatten_tensors,
    sample_dim,
    seeds_of_samples,
    stack_rows,
)
from cockpit_core.layers.standing_in import Tried

ATOMIC: tuple[type[nn.Module], ...] = (
    nn.MultiheadAttention,
    nn.RNNBase,
    nn.RNNCellBase,
    nn.AdaptiveLogSoftmaxWithLoss,
)
"""Modules that use their children's parameters without calling the children, or call them on a part of the batch."""


class ModuleGradients:
    """The individual gradients of all parameters of one call, computed block by block and shared between them."""

    def __init__(
        self, call: Call, outputs: dict[int, Tensor], names: list[str], scale: float, keep_bytes: int, mute: Callable
    ):
        self.call = replace(call)  # the original lets go of its inputs as soon as its layer is measured
        self.outputs, self.names, self.scale, self.mute = outputs, names, scale, mute
        self.parameters = {name: p.detach() for name, p in call.own_parameters().items() if name in names}
        each = sum(p.numel() * p.element_size() for p in self.parameters.values())
        self.keep = each * call.batch_size <= keep_bytes
        self.whole: dict[str, Tensor] | None = None
        alone = self.is_random or isinstance(call.module, ATOMIC) or bool(call.rows)
        self.ways = ["masks"] if alone else ["vmap", "masks"]
        self.state = call.state or ModuleState(call.module)
        if self.state.has_hooks:
            self.ways.append("masks with hooks")
        self.graph: tuple[list[Tensor], dict[str, Tensor]] | None = None
        self.held: dict[str, Tensor] = call.parameters or {}
        self.seeds = outputs
        self.seconds = 0.0

    @property
    def is_random(self) -> bool:
        return self.call.random_state is not None and not is_same(*self.call.random_state)

    def drawing(self) -> Any:
        """The random numbers of the call once more, if it drew any."""
        return restored(self.call.random_state[0] if self.call.random_state and self.is_random else None)

    def rows(self, lo: int, hi: int, name: str) -> Tensor:
        if self.whole is None and self.keep:
            self.whole = self.compute(0, self.call.batch_size, self.names)
        if self.whole is not None:
            return self.whole[name][lo:hi]
        return self.compute(lo, hi, [name])[name]

    def compute(self, lo: int, hi: int, names: list[str]) -> dict[str, Tensor]:
        start = time.perf_counter()
        try:
            return self.try_ways(lo, hi, names)
        finally:
            self.seconds += time.perf_counter() - start

    def cost_ratio(self) -> float | None:
        """How much longer this took than one backward pass of the module, which is timed here; None if it took nothing."""
        if not self.seconds:
            return None
        with self.mute(), torch.enable_grad():
            outputs, parameters = self.rerun()
            seeds = [b.to(out.dtype) for b, out in zip(self.seeds.values(), outputs, strict=True)]
            start = time.perf_counter()
            torch.autograd.grad(outputs, list(parameters.values()), seeds, retain_graph=True, allow_unused=True)
            own = time.perf_counter() - start
        return self.seconds / max(own, 1e-9)

    def try_ways(self, lo: int, hi: int, names: list[str]) -> dict[str, Tensor]:
        while self.ways:
            try:
                with self.mute(), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    return self.by_vmap(lo, hi, names) if self.ways[0] == "vmap" else self.by_masks(lo, hi, names)
            except NotCovered:
                raise
            except NotRepeatable as error:
                raise NotCovered(f"{type(self.call.module).__name__} has no rule of its own, and {error}") from error
            except Exception as error:  # a function without a batching rule, a shape that needs the whole batch, ...
                if len(self.ways) == 1:
                    raise NotCovered(self.explain(names, error)) from error
                self.ways.pop(0)
        raise NotCovered(f"no per-sample products of {type(self.call.module).__name__}")

    def explain(self, names: list[str], error: Exception) -> str:
        kind = type(self.call.module).__name__
        if "does not require grad" in str(error):  # nothing that it returns depends on these
            return f"what {kind} returns does not depend on {', '.join(names)}: it is used outside the call, perhaps by the loss"
        return f"no per-sample products of {kind}: {error}"

    def hold(self) -> None:
        """What is not formed yet will be formed after the optimizer's step, from the parameters as they are now."""
        if self.whole is None and not self.held:
            self.held = {name: p.detach().clone() for name, p in self.call.module.named_parameters()}
            self.parameters = {name: self.held[name] for name in self.parameters}
            self.graph = None

    def next_way(self, way: str) -> bool:
        """Contributions did not add up this way: try the other, if there is one. Another parameter may have moved on already."""
        if self.ways[0] != way:
            return True
        if len(self.ways) < 2:
            return False
        self.ways.pop(0)
        self.whole = self.graph = None
        return True

    def copy_parameters(self) -> dict[str, Tensor]:
        """All parameters of the module, even those that are not asked for: its forward may write into them."""
        values = self.call.own_parameters() | self.held | self.parameters
        return {name: p.detach().clone() for name, p in values.items()}

    def by_vmap(self, lo: int, hi: int, names: list[str]) -> dict[str, Tensor]:
        call, B = self.call, self.call.batch_size
        axis = call.batch_dim

        def batched(value: Any) -> bool:
            return isinstance(value, Tensor) and value.dim() > axis and value.shape[axis] == B

        flat = [*call.inputs, *call.kwargs.values()]
        if not any(batched(value) for value in flat):
            raise ValueError("no input with a batch dimension")
        moving = [value.movedim(axis, 0)[lo:hi].clone() for value in flat if batched(value)]
        flat = [value if batched(value) else copy_inputs(value) for value in flat]
        seeds = [b.movedim(sample_dim(b, call, k), 0)[lo:hi] for k, b in self.outputs.items()]
        dims = [sample_dim(b, call, k) for k, b in self.outputs.items()]

        copies = self.copy_parameters()

        def one(values: list[Tensor], seed: list[Tensor]) -> dict[str, Tensor]:
            rest = iter(values)
            filled = [next(rest).unsqueeze(axis) if batched(value) else value for value in flat]
            arguments, named = (
                tuple(filled[: len(call.inputs)]),
                dict(zip(call.kwargs, filled[len(call.inputs) :], strict=True)),
            )

            def run(parameters: dict[str, Tensor]) -> list[Tensor]:
                result = flatten_tensors(functional_call(call.module, copies | parameters, arguments, named))
                return [result[k] for k in self.outputs]

            pull = vjp(run, {name: copies[name] for name in names})[1]
            return pull([s.unsqueeze(d) for s, d in zip(seed, dims, strict=True)])[0]

        with self.state.installed(), self.drawing():
            return vmap(one)(moving, seeds)

    def by_masks(self, lo: int, hi: int, names: list[str]) -> dict[str, Tensor]:
        outputs, parameters = self.rerun()
        wanted = [parameters[name] for name in names]
        seeds = []
        for (k, b), out in zip(self.seeds.items(), outputs, strict=True):
            seeds.append(seeds_of_samples(b.to(out.dtype), self.call, k, lo, hi))
        try:
            rows = torch.autograd.grad(
                outputs, wanted, seeds, retain_graph=True, is_grads_batched=True, allow_unused=True
            )
        except RuntimeError:  # no batching rule for some backward function
            singles = [
                torch.autograd.grad(outputs, wanted, [s[n] for s in seeds], retain_graph=True, allow_unused=True)
                for n in range(hi - lo)
            ]
            rows = tuple(stack_rows(column) for column in zip(*singles, strict=True))
        zero = [row if row is not None else p.new_zeros(hi - lo, *p.shape) for row, p in zip(rows, wanted, strict=True)]
        return dict(zip(names, zero, strict=True))

    def rerun(self) -> tuple[list[Tensor], dict[str, Tensor]]:
        """The module's forward once more, on copies of all it keeps, with the random state of the call."""
        if self.graph is None:
            call, hooks = self.call, self.ways[0] == "masks with hooks"
            values = self.copy_parameters()
            copies = {name: values[name].requires_grad_() for name in self.parameters}
            inputs, named = copy_inputs(call.inputs), copy_inputs(call.kwargs)
            with torch.enable_grad(), self.state.installed(hooks=hooks), self.drawing():
                result = flatten_tensors(functional_call(call.module, values, inputs, named))
            self.seeds = external_seeds({k: result[k] for k in self.outputs}, self.outputs, call)
            self.graph = [result[k] for k in self.seeds], copies
        return self.graph


class PerSample(Contribution):
    def __init__(self, gradients: ModuleGradients, name: str, shape: torch.Size):
        self.gradients, self.name = gradients, name
        self.way = gradients.ways[0]  # the one that its rows came from
        super().__init__(gradients.call.batch_size, shape, gradients.scale)

    def make(self, lo: int, hi: int, scratch: Scratch) -> Tensor:
        rows = self.gradients.rows(lo, hi, self.name)
        self.way = self.gradients.ways[0]
        return rows

    def hold(self) -> None:
        self.gradients.hold()

    def next_way(self) -> bool:
        return self.gradients.next_way(self.way)

    @property
    def floats_per_sample(self) -> int:
        outputs = sum(b.numel() for b in self.gradients.outputs.values())
        return self.shape.numel() + outputs


def gradients_of(part: Contribution) -> ModuleGradients | None:
    """What stands behind this contribution, if it comes from the fallback."""
    part = part.part if isinstance(part, Tried) else part
    return part.gradients if isinstance(part, PerSample) else None


def refuse_shared_statistics(call: Call) -> None:
    """Running SyncBatchNorm again would wait for processes that do not answer."""
    if has_peers() and call.training and any(isinstance(module, nn.SyncBatchNorm) for module in call.module.modules()):
        raise NotCovered("SyncBatchNorm inside it talks to other processes, so it cannot be run again")


def refuse_sharded_modules(call: Call) -> None:
    if call.parameters is None:
        return
    if contains_sharded_modules(call.module):
        raise NotCovered(
            "fully_shard was applied to it or a part of it, so it cannot be run again; apply it to a module around it"
        )
    if not call.parameters:
        raise NotCovered("its rule failed, and it cannot be run again: its parameters are sharded")


def fallback(
    call: Call, outputs: dict[int, Tensor], names: list[str], scale: float, keep_bytes: int, mute: Callable
) -> dict[str, Contribution]:
    call.method = "fallback"
    refuse_shared_statistics(call)
    refuse_sharded_modules(call)
    gradients = ModuleGradients(call, of_outputs(outputs), names, scale, keep_bytes, mute)
    return {name: PerSample(gradients, name, p.shape) for name, p in call.own_parameters().items() if name in names}

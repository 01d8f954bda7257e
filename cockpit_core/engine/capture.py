"""What one backward pass leaves behind: for each call of a hooked module the gradients of its outputs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from cockpit_core.engine.cover import Cover
from cockpit_core.engine.detaching import detach_all
from cockpit_core.engine.loss.individual import NoIndividualLosses, describe_sum
from cockpit_core.foundation.long_sums import sum_of
from cockpit_core.foundation.transfer import Asked, Transfer
from cockpit_core.kernels.native.describing import describe
from cockpit_core.layers import random_state
from cockpit_core.layers.contribution import Contribution
from cockpit_core.layers.module_state import ModuleState
from cockpit_core.layers.random_state import RandomState
from cockpit_core.layers.registry import Call, NotCovered
from cockpit_core.layers.seeds import flatten_tensors


@dataclass(eq=False)
class Captured:
    """One call and what came back to it; contributions are made once and shared by its parameters."""

    call: Call
    names: list[str]
    gradients: dict[int, Tensor] = field(default_factory=dict)
    contributions: dict[str, Contribution] | None = None
    waiting: set[str] = field(default_factory=set)
    versions: dict[int, int] = field(default_factory=dict)
    """Of the gradients, when they came by: they are read later."""

    def put(self, position: int, gradient: Tensor) -> None:
        self.gradients[position], self.versions[position] = gradient, gradient._version

    def check_unchanged(self) -> None:
        """Something that was overwritten after the call, or in the backward pass, would give wrong numbers silently."""
        self.call.check_unchanged()
        for k, version in self.versions.items():
            if self.gradients[k]._version != version:
                raise NotCovered(
                    f"the gradient of the output of {type(self.call.module).__name__} was changed in place in the backward "
                    "pass; use an out-of-place operation"
                )


@dataclass(eq=False)
class Pass:
    """One backward pass: its samples, the factor on its loss, and its captured calls."""

    task: int
    batch_size: int = 0
    losses: Tensor | None = None
    loss: float = 0.0
    no_losses: str = ""
    amounts: list[Tensor] = field(default_factory=list)
    """The amounts of the loss, not read yet."""
    asked: Asked | None = None
    """All of these on their way to the host, and the size of each."""
    here: tuple[list[float], list[Tensor]] | None = None
    """The same where they are on the host already."""
    sizes_asked: list[int] = field(default_factory=list)
    unchecked: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """Individual losses, and the loss that they should average to."""
    curved: bool = False
    accumulated: bool = False
    """Some parameter's gradient was added to: False means the user called ``torch.autograd.grad``, no training."""
    captured: dict[int, Captured] = field(default_factory=dict)
    by_parameter: dict[str, list[tuple[Captured, str]]] = field(default_factory=dict)
    bytes: int = 0
    """What has been captured so far: inputs and output gradients."""
    unjudged: list[Any] = field(default_factory=list)
    """Results of layers (``layer_result.LayerResult``) that are checked at the end of the pass, all at once."""
    gradients: dict[str, Tensor] = field(default_factory=dict)
    """Gradients of parameters whose results are checked at the end."""
    job: Any = None
    """What is asked of its layers (``layer_result.Job``), as long as its batch does not grow."""
    settled: int = 0
    """How much had been captured when results were checked last."""
    arrived: list[str] = field(default_factory=list)
    """Parameters whose gradient is there, and whose individual gradients are still to be reduced."""
    hooked: frozenset[str] = frozenset()
    """Parameters with a hook of the user: it may change the gradient, or the parameter itself."""
    forwards: list[Any] = field(default_factory=list)
    """Calls of the model that this pass went back through (``forward.Forward``), if Alpha may have to repeat them."""
    direct: dict[str, dict[int, Tensor]] = field(default_factory=dict)
    """Individual gradients [B, *shape] of parameters that are broadcast over the batch (see ``broadcast``), by call of
    the model."""
    sizes: dict[int, int] = field(default_factory=dict)
    """Samples of each call of the model that this pass goes back through. Calls with equally many samples are looks at
    the same samples; calls with different numbers are batches of their own, and the pass has all of their samples."""
    losses_of_calls: dict[int, Tensor] = field(default_factory=dict)
    part: int = 0
    """Samples of the loss that was met last."""
    whole: bool = False
    """What is differentiated is more than the loss module gave: its value and its parts are known from its graph."""
    shared: dict[str, Tensor] = field(default_factory=dict)
    """By parameter: the gradient of what counts alike for every sample (a penalty), a part of ``p.grad``."""
    is_penalty: bool = False
    """It went through a function of the parameters alone."""
    labels: Tensor | None = None
    """Class of each sample, where the loss was given classes."""
    keeps_graph: bool = True
    """The user may go back through this graph once more (``retain_graph=True``)."""
    further: set[int] = field(default_factory=set)
    """Tasks of later backward passes through the same calls, whose gradients were added to these."""

    @property
    def is_union(self) -> bool:
        return len(self.sizes) > 1 and len(set(self.sizes.values())) > 1

    def note_size(self, forward: int, size: int) -> None:
        if not size or self.sizes.get(forward) == size:
            return
        self.sizes[forward] = size
        if self.is_union:
            self.batch_size = sum(self.sizes.values())
            self._join_losses()

    def add_losses(self, forward: int, losses: Tensor) -> None:
        """Individual losses of one call's samples, with that call's loss as their mean."""
        known = self.losses_of_calls
        if forward in known and known[forward].shape != losses.shape:
            raise NoIndividualLosses(
                f"losses of {len(known[forward])} and of {len(losses)} samples were added, and the model was not called as a "
                "whole: which of its samples they belong to is not known"
            )
        known[forward] = known[forward] + losses if forward in known else losses
        self._join_losses()

    def _join_losses(self) -> None:
        known = self.losses_of_calls
        if not known or self.no_losses:
            return
        if not self.is_union:
            self.losses = sum_of(list(known.values()))
        elif known.keys() == self.sizes.keys():
            parts = [known[forward] * (self.batch_size / size) for forward, size in sorted(self.sizes.items())]
            self.losses = torch.cat(parts)
        else:
            self.losses = None
            self.no_losses_yet = "one loss looks at several batches of different sizes, so its samples have no losses"

    def ask_losses(self, transfer: Transfer) -> None:
        """What the loss module gave is wanted on the host, in double precision."""
        scalars = [*self.amounts, *(value for _, value in self.unchecked)]
        vectors = [losses for losses, _ in self.unchecked] + ([] if self.losses is None else [self.losses])
        if not scalars and not vectors:
            return
        if all(tensor.is_cpu for tensor in (*scalars, *vectors)):
            double = {id(vector): vector.double() for vector in vectors}  # most often one and the same
            self.here = [float(x.item()) for x in scalars], [double[id(vector)] for vector in vectors]
            return
        parts = [torch.stack([x.double() for x in scalars])] if scalars else []
        self.sizes_asked = [len(scalars), *(vector.shape[0] for vector in vectors)]
        self.asked = transfer.ask([torch.cat([*parts, *(vector.double() for vector in vectors)])])

    def read_losses(self) -> None:
        """What was asked for has arrived. Do the individual losses add up to the loss?"""
        if self.here is not None:
            (known, pieces), self.here = self.here, None
        elif self.asked is not None:
            (both,), self.asked = self.asked.read(), None
            numbers, *pieces = both.split(self.sizes_asked)
            known = numbers.numpy().tolist()
        else:
            return
        self.losses = None if self.losses is None else pieces[-1]
        self.loss += sum(known[: len(self.amounts)])
        described = describe(pieces[: len(self.unchecked)])
        for (losses, _), own, value in zip(self.unchecked, described, known[len(self.amounts) :], strict=False):
            problem = describe_sum(own.mean, own.size, value, losses.dtype)
            if problem and not self.no_losses:
                self.no_losses, self.losses = problem, None
        self.amounts, self.unchecked = [], []

    no_losses_yet: str = ""
    """Why there are none, unless more losses come."""

    @property
    def count(self) -> int:
        """How many backward passes it stands for."""
        return 1 + len(self.further)

    def shares_calls(self, other: Pass) -> bool:
        return not self.captured.keys().isdisjoint(other.captured)

    def add_pass(self, other: Pass) -> None:
        """A later pass through the same calls (``retain_graph=True``): the same samples, whose gradients and losses add up."""
        if self.is_union or other.is_union or self.batch_size != other.batch_size:
            raise NotCovered("two backward passes share a call of the model, but not their samples")
        for own in other.captured.values():
            mine = self.captured.setdefault(id(own.call), own)
            for position, gradient in own.gradients.items() if mine is not own else ():
                before = mine.gradients.get(position)
                mine.put(position, gradient if before is None else before + gradient)
        for name, places in other.by_parameter.items():
            known = self.by_parameter.setdefault(name, [])
            known += [(held, local) for held, local in places if self.captured[id(held.call)] is held]
        for name, rows in other.direct.items():
            add_up(self.direct.setdefault(name, {}), rows)
        add_up(self.shared, other.shared)
        self.sizes |= other.sizes
        both = self.losses is not None and other.losses is not None
        self.losses = self.losses + other.losses if both else None  # type: ignore[operator]
        self.no_losses = self.no_losses or self.no_losses_yet or other.no_losses or other.no_losses_yet
        self.loss += other.loss
        self.forwards, self.bytes = [*self.forwards, *other.forwards], self.bytes + other.bytes
        self.whole, self.curved = self.whole or other.whole, self.curved or other.curved
        self.keeps_graph = other.keeps_graph
        self.further |= {other.task, *other.further}

    def add(self, call: Call, names: list[str], cover: Cover, position: int, gradient: Tensor) -> None:
        self.note_size(call.forward, call.batch_size)
        held = self.captured.get(id(call))
        if held is None:
            held = self.captured[id(call)] = Captured(call, names, waiting=set(names))
            for local in names:
                self.by_parameter.setdefault(cover.name_of(call.module, local), []).append((held, local))
        before = held.gradients.get(position) if call.adds_up else None
        held.put(position, gradient if before is None else before + gradient)


def add_pass(passes: list[Pass], pass_: Pass) -> str:
    """Passes through the same calls become one, because the samples are the same. Returns why not, where that is
    impossible."""
    known = next((own for own in passes if own.shares_calls(pass_)), None)
    try:
        if known is not None:
            known.add_pass(pass_)
            return ""
    except NotCovered as reason:
        passes.append(pass_)
        return str(reason)
    passes.append(pass_)
    return ""


def add_up(known: dict[Any, Tensor], more: dict[Any, Tensor]) -> None:
    for key, value in more.items():
        known[key] = known[key] + value if key in known else value


def free(pass_: Pass, name: str) -> None:
    """Drop what only this parameter still needed."""
    pass_.direct.pop(name, None)
    pass_.shared.pop(name, None)
    for held, _ in pass_.by_parameter.pop(name, ()):
        if not held.waiting:
            pass_.captured.pop(id(held.call), None)
            held.contributions = None
            held.gradients, held.versions = {}, {}
            if not pass_.keeps_graph:
                held.call.release()


def keeps_graph() -> bool:
    """Was the backward pass that runs now told to ``retain_graph``? Yes, where torch does not tell."""
    asked = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    return asked is None or bool(asked())


def find_batch_size(values: Any, batch_dim: int, depth: int = 0) -> int | None:
    """The number of samples: the size of the first tensor among the model's inputs that has the batch dimension.
    ``values`` are arguments and keywords. Two levels down, inside one argument, a list of tensors of different sizes
    has one sample per tensor."""
    if isinstance(values, Tensor):
        return int(values.shape[batch_dim]) if values.dim() > batch_dim else None
    args = values[0] if not depth and isinstance(values, tuple) and values else None
    if isinstance(args, tuple) and args and isinstance(args[0], Tensor) and args[0].dim() > batch_dim:
        return int(args[0].shape[batch_dim])  # the usual case, in a moment
    if isinstance(values, dict) or hasattr(values, "keys"):
        values = list(values.values())
    if isinstance(values, (list, tuple)):
        tensors = [value for value in values if isinstance(value, Tensor) and value.dim() > batch_dim]
        several = len({tensor.shape[batch_dim] for tensor in tensors}) > 1
        if depth > 1 and several and len(tensors) == len(values):
            return len(values)
        for value in values:
            size = find_batch_size(value, batch_dim, depth + 1)
            if size is not None:
                return size
    return None


@dataclass(frozen=True)
class BeforeCall:
    """What a call starts from, where it may have to be repeated: taken before it, because it may change all of it."""

    random_state: RandomState
    state: ModuleState
    versions: list[int]

    @classmethod
    def of(cls, module: nn.Module, args: tuple, kwargs: dict) -> BeforeCall:
        tensors = flatten_tensors((args, kwargs))
        state = ModuleState(module)
        drawn = random_state.take(tensors, of_torch=state.is_of_torch)
        return cls(drawn, state, [tensor._version for tensor in tensors])

    def is_changed(self, tensors: list[Tensor]) -> bool:
        """Did the call write into its own inputs?"""
        return self.versions != [tensor._version for tensor in tensors]


def make_call(
    module: nn.Module,
    args: tuple,
    kwargs: dict,
    batch_size: int,
    batch_dim: int,
    before: BeforeCall | None,
    output: Any = None,
) -> Call:
    inputs, named, tensors = detach_all(args, kwargs)
    versions = tuple((t, t._version) for t in tensors)  # a detached tensor shares its counter
    call = Call(module, inputs, named, batch_size, batch_dim, versions, None, None, module.training)
    if before is not None:
        after = random_state.take(tensors, of_torch=before.state.is_of_torch)
        call.random_state, call.state = (before.random_state, after), before.state
        if before.is_changed(tensors):
            call.state.reason = "it writes into its own input, so it cannot be run again on the same input"
    if isinstance(module, nn.SyncBatchNorm):
        call.statistics = find_shared_statistics(output)
    return call


def find_shared_statistics(output: Any) -> tuple[Tensor, Tensor] | None:
    """What SyncBatchNorm has kept for its own backward pass; None where it ran as an ordinary BatchNorm."""
    node: Any = getattr(output, "grad_fn", None)
    if type(node).__name__ != "SyncBatchNormBackward":
        return None
    _, _, mean, inverse_deviation, _ = node.saved_tensors
    return mean.detach(), inverse_deviation.detach()

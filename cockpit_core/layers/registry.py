"""One file per layer type; the decorator registers its rule. A rule turns one call of a module into contributions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from cockpit_core.layers.contribution import Contribution
from cockpit_core.layers.module_state import ModuleState
from cockpit_core.layers.random_state import RandomState


class NotCovered(Exception):
    """There are no individual gradients of this call; the message says why and what to do."""


@dataclass
class Call:
    """One call of a module in the forward pass: what a rule needs, detached from the graph."""

    module: nn.Module
    inputs: tuple[Any, ...]
    kwargs: dict[str, Any]
    batch_size: int
    batch_dim: int
    versions: tuple[tuple[Tensor, int], ...] = ()
    random_state: tuple[RandomState, RandomState] | None = None
    """Before and after the call, where it may have to be repeated."""
    state: ModuleState | None = None
    """What the module kept before the call, where it may have to be repeated."""
    training: bool = True
    method: str = field(default="rule")
    reason: str = ""
    unbatched: bool = False
    """It was called once for all samples (learned positions); its gradients are taken where they meet the batch."""
    adds_up: bool = False
    """Several places of the graph send gradients to the same output (else a later one replaces an earlier one)."""
    statistics: tuple[Tensor, Tensor] | None = None
    """Mean and 1 / standard deviation per channel where they were taken over the samples of several processes."""

    forward: int = 0
    """Which call of the model it belongs to: one backward pass may go through several."""
    parameters: dict[str, Tensor] | None = None
    """Whole values by local name, where those of the module itself are sharded over processes."""

    shapes: tuple[tuple[int, ...], ...] = ()
    """Of its outputs."""
    from_data: bool = False
    """It was called on an input of the model itself."""
    data_dim: int | None = None
    """The dimension of its input that counts samples, where it was called on an input of the model or on a view of one."""
    in_blocks: bool = False
    """It was called on such a view with k rows of each sample, one sample behind the other (``x.flatten(0, 1)``)."""
    dims: dict[int, int] = field(default_factory=dict)
    """By output: the dimension that counts samples, where it was seen in the graph (``engine.following``)."""
    inner: Tensor | None = None
    """What its last map was given, where that was read from the graph: then the gradient at ``INNER`` is noted too. Of a
    recurrence: all hidden states, as long as their version is ``inner_version``."""
    inner_version: int = 0
    rows: dict[int, tuple[Tensor, int]] = field(default_factory=dict)
    """By output: the sample of each row (-1: of none) and how many leading dimensions count rows, where they lie in no
    order."""
    in_order: frozenset[int] = frozenset()
    """Outputs whose rows are k of the first sample, then k of the second, ...: most rules unflatten them."""
    followed: bool = False
    """Its samples were seen in the graph, not only guessed from its shape."""
    refusal: str = ""
    """Why its rows belong to no sample."""
    interacts: str = ""
    """Why what its samples contribute is not the gradient of their losses."""

    def own_parameters(self) -> dict[str, Tensor]:
        return dict(self.module.named_parameters()) if self.parameters is None else self.parameters

    @property
    def input(self) -> Any:
        """The first argument, even if it was passed by name."""
        return self.inputs[0] if self.inputs else self.kwargs.get("input", next(iter(self.kwargs.values()), None))

    def release(self) -> None:
        """All that was asked of this call is known. The user's graph holds it until the loss goes, usually through the
        next forward pass: without this, the activations of two steps would exist at once."""
        self.inputs, self.kwargs, self.versions = (), {}, ()
        self.random_state, self.state, self.statistics, self.parameters = None, None, None, None
        self.inner = None

    def check_unchanged(self) -> None:
        """An input that was overwritten after the call would give wrong numbers silently."""
        for tensor, version in self.versions:
            if tensor._version != version:
                raise NotCovered(
                    f"the input of {type(self.module).__name__} was changed in place after the call; "
                    "use an out-of-place operation"
                )


Rule = Callable[[Call, Any, float], "dict[str, Contribution] | None"]
"""``rule(call, b, scale) -> {"weight": contribution, ...}`` with b the gradient of the module's output."""

AnyRule = TypeVar("AnyRule", bound=Rule)

INNER = -1
"""Among the gradients of a call, by output: the one at a place inside the module (``Repeating.find_inner``)."""
FindInner = Callable[[Call, Any], Any]
"""From a call and its outputs to the node of the graph whose incoming gradient is wanted, or None."""


@dataclass(frozen=True)
class Repeating:
    """A rule that repeats what lies between the maps of a module: b are the gradients of all its outputs, by place.

    It serves parameters of the module's children too, and may decline a call (None). The generic fallback stands
    behind it, in case its result does not add up.
    """

    rule: Rule
    find_inner: FindInner | None = None

    def __call__(self, call: Call, b: dict[int, Tensor], scale: float) -> dict[str, Contribution]:
        return self.rule(call, b, scale) or {}


RULES: dict[type[nn.Module], Any] = {}


def rule(
    *types: type[nn.Module], repeats: bool = False, find_inner: FindInner | None = None
) -> Callable[[AnyRule], AnyRule]:
    def register(function: AnyRule) -> AnyRule:
        for module_type in types:
            RULES[module_type] = Repeating(function, find_inner) if repeats else function
        _bases.clear()
        return function

    return register


FOREIGN_RULES: dict[str, Rule] = {}
"""By the full name of a type of another library, which need not be installed."""


def foreign_rule(name: str) -> Callable[[AnyRule], AnyRule]:
    def register(function: AnyRule) -> AnyRule:
        FOREIGN_RULES[name] = function
        return function

    return register


_bases: dict[type[nn.Module], type[nn.Module] | None] = {}  # by type: whose rule it has, if nothing was changed since


def find_rule(module: nn.Module) -> Any:
    """The rule of this very type. A subclass that leaves ``forward`` alone computes the same and shares it."""
    kind = type(module)
    base = _bases[kind] if kind in _bases else _find_base(kind)
    if base is None or kind.forward is not base.forward or child_of(module, "parametrizations"):
        return None
    return RULES.get(base)


def _find_base(kind: type[nn.Module]) -> type[nn.Module] | None:
    for own in kind.__mro__:  # of a library that is there, because its type is
        name = f"{own.__module__}.{own.__qualname__}"
        if name in FOREIGN_RULES and own not in RULES:
            RULES[own] = FOREIGN_RULES[name]
    base = _bases[kind] = next((base for base in kind.__mro__ if base in RULES), None)
    return base


def child_of(module: nn.Module, child: str) -> Any:
    """``getattr(module, child, None)``, which takes torch microseconds where there is none, and a step asks often."""
    return module._modules.get(child) or module.__dict__.get(child) or getattr(type(module), child, None)


def find_inner(call: Call, outputs: list[Tensor]) -> Any:
    """The node inside this module whose incoming gradient saves its rule a repetition, where there is one."""
    own = RULES.get(type(call.module))
    return own.find_inner(call, outputs) if isinstance(own, Repeating) and own.find_inner is not None else None


def watch_inner(call: Call, outputs: list[Tensor], take: Callable[[Tensor], None]) -> None:
    """Hand that gradient on when it comes by."""
    node = find_inner(call, outputs)
    if node is not None:
        node.register_prehook(lambda given: None if given[0] is None else take(given[0]))


def of_outputs(gradients: dict[int, Tensor]) -> dict[int, Tensor]:
    """The gradients of the module's outputs."""
    return {k: b for k, b in gradients.items() if k != INNER} if INNER in gradients else gradients


def samples_first(tensor: Tensor, call: Call, features: int) -> Tensor:
    """Bring ``tensor`` to [B, positions..., *features]; ``features`` counts its last dimensions, which are not
    positions.

    The batch is at ``batch_dim`` where that dimension has B entries. A leading dimension of k B entries holds k
    positions of each sample (``x.view(B * T, F)``), samples outermost for batch_dim 0, innermost for batch_dim 1.
    """
    B, lead = call.batch_size, tensor.dim() - features
    if 0 in call.rows and 0 not in call.in_order:
        return gather_rows(tensor, call.rows[0][0], B, lead)
    dim = call.dims.get(0)
    if dim is not None and lead > dim and tensor.shape[dim] == B:
        return tensor if dim == 0 else tensor.movedim(dim, 0)
    if lead > call.batch_dim and tensor.shape[call.batch_dim] == B:
        return tensor if call.batch_dim == 0 else tensor.movedim(call.batch_dim, 0)
    if lead >= 1 and tensor.shape[0] == B:
        return tensor
    if lead >= 1 and tensor.shape[0] and tensor.shape[0] % B == 0:
        if not call.followed:
            raise NotCovered(
                f"which of its {tensor.shape[0]} rows belong to which of the {B} samples could not be followed: the model's "
                "outputs do not show it; return what the loss is computed from, and keep samples in a dimension of their own"
            )
        if call.batch_dim == 0:
            return tensor.unflatten(0, (B, -1))
        return tensor.unflatten(0, (-1, B)).movedim(1, 0)
    raise NotCovered(
        f"no dimension of {tuple(tensor.shape)} counts the {B} samples of the batch"
        + (
            "; pass batch_dim= to track() if the first dimension of the model's inputs does not count them"
            if not call.followed and B > 1
            else ""
        )
    )


def gather_rows(tensor: Tensor, rows: Tensor, B: int, lead: int) -> Tensor:
    """[B, S, *features] with S the most rows that a sample has; where one has fewer, the rest is zero."""
    if lead < 1 or tensor.shape[:lead].numel() != len(rows):
        raise NotCovered(f"{tuple(tensor.shape)} has other rows than the {len(rows)} of the output of its module")
    flat = tensor.flatten(0, lead - 1)
    order = torch.argsort(rows, stable=True)
    order = order[rows[order] >= 0]
    sample = rows[order]
    counts = torch.bincount(sample, minlength=B)
    starts = torch.cumsum(counts, 0) - counts
    slot = torch.arange(len(sample), device=rows.device) - starts[sample]
    gathered = flat.new_zeros(B, max(int(counts.max()), 1), *flat.shape[1:])
    gathered[sample, slot] = flat[order]
    return gathered


def collapse_positions(tensor: Tensor, features: int) -> Tensor:
    """[B, positions..., *features] to [B, S, *features]."""
    lead = tensor.dim() - features
    if lead == 1:
        return tensor.unsqueeze(1)
    return tensor.flatten(1, lead - 1) if lead > 2 else tensor


def match_dtype(tensor: Tensor, like: Tensor) -> Tensor:
    """Under autocast a layer computes in a lower precision than its parameters: form gradients in the parameter's."""
    return tensor if tensor.dtype == like.dtype else tensor.to(like.dtype)

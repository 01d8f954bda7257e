"""Optimizers as people write them: wrapped in another object, holding another one, calling each other's ``step``."""

from __future__ import annotations

import sys
from collections.abc import Container, Iterable
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any

import torch
from torch.optim import Optimizer

HOLDERS = ("optimizer", "optim", "base_optimizer", "inner_optimizer", "_optimizer")
"""What wrappers call the optimizer that they pass ``step`` on to: Accelerate, Lookahead, LARS, SAM."""


def has_hooks(optimizer: Any) -> bool:
    """Whether its ``__init__`` has run, so that hooks can be registered."""
    return isinstance(optimizer, Optimizer) and hasattr(optimizer, "_optimizer_step_pre_hooks")


def unwrap_optimizer(optimizer: Any) -> Any:
    """A wrapper passes ``step`` on; hooks belong on the optimizer itself. The object itself, if there is none inside."""
    seen: list[Any] = []
    while not has_hooks(optimizer) and not any(optimizer is other for other in seen):
        seen.append(optimizer)
        inside = (attributes_of(optimizer).get(name) for name in HOLDERS)
        optimizer = next((each for each in inside if hasattr(each, "step")), None)
    return optimizer if has_hooks(optimizer) else seen[0]


def attributes_of(thing: Any) -> dict[str, Any]:
    return getattr(thing, "__dict__", {})


def find_inner(optimizer: Optimizer) -> list[Optimizer]:
    """The one optimizer that this one holds for the same parameters, with the one inside that: a two-step optimizer (SAM)
    calls the ``step`` of the inner one only. Where there are several, none can be said to be the step."""
    inner: list[Optimizer] = []
    while True:
        own = {id(p) for p in parameters_of([optimizer])}
        inside = {
            id(each): each for each in attributes_of(optimizer).values() if has_hooks(each) and each is not optimizer
        }
        sharing = [each for each in inside.values() if own & {id(p) for p in parameters_of([each])}]
        if len(sharing) != 1 or any(sharing[0] is each for each in inner):
            return inner
        optimizer = sharing[0]
        inner.append(optimizer)


def drop_inner(optimizers: Iterable[Optimizer]) -> list[Optimizer]:
    """Without those that another of them holds: its steps are theirs."""
    optimizers = list(optimizers)
    held = {id(inner) for optimizer in optimizers for inner in find_inner(optimizer)}
    return [optimizer for optimizer in optimizers if id(optimizer) not in held]


def parameters_of(optimizers: Iterable[Optimizer]) -> list[torch.Tensor]:
    return [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]


def may_nest(optimizer: Optimizer) -> bool:
    """Can one ``step`` of it call the hooks twice? If it holds another one, or its ``step`` calls that of its base class."""
    defined = [kind for kind in type(optimizer).__mro__ if "step" in vars(kind) and kind is not Optimizer]
    return len(defined) > 1 or bool(find_inner(optimizer))


def is_inside_another(watched: Container[int]) -> bool:
    """Called by a hook: does the ``step`` that it belongs to run inside the ``step`` of a watched optimizer?

    The stack is asked rather than a counter, because a ``step`` that raises never comes back to count down.
    """
    frame, depth = sys._getframe(1), 0
    code = step_code()
    while frame is not None:
        if frame.f_code is code and id(frame.f_locals.get("self")) in watched:
            depth += 1
            if depth > 1:
                return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


@lru_cache
def step_code() -> CodeType:
    """What torch wraps around the ``step`` of every optimizer to call its hooks."""
    return Optimizer.profile_hook_step(lambda: None).__code__


def is_stepping(optimizers: Iterable[Optimizer]) -> bool:
    """Is this called from within a ``step`` of theirs? With a closure (LBFGS) many losses belong to one step."""
    known = {id(optimizer) for optimizer in optimizers}
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "step" and id(frame.f_locals.get("self")) in known:
            return True
        frame = frame.f_back
    return False

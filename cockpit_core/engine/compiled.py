"""Compiled models: hooks on their inner modules are never called, so the steps that are tracked run eagerly.

Untracked steps keep their compiled code. Eager and compiled code may differ in the last bits: a tracked training is bit
for bit the one in which the tracked steps (and, for Alpha, the step after each) are run eagerly.
"""

from __future__ import annotations

import gc
import sys
from typing import Any

from torch import nn


def is_wrapper(module: Any) -> bool:
    """``torch.compile(module)``; by name, because importing its class takes a second."""
    return type(module).__name__ == "OptimizedModule" and hasattr(module, "_orig_mod")


def find_compiled_wrappers(model: nn.Module) -> list[nn.Module]:
    """What ``torch.compile(model)`` returned, where ``track`` was given the model itself, which does not know its
    wrapper."""
    if not has_compiled():
        return []
    from torch._dynamo.eval_frame import OptimizedModule

    wrappers = (o for o in gc.get_objects() if issubclass(type(o), OptimizedModule))
    return [wrapper for wrapper in wrappers if wrapper.__dict__.get("_modules", {}).get("_orig_mod") is model]


def has_compiled() -> bool:
    """Has ``torch.compile`` been called in this process? Looking through all objects takes a tenth of a second or more.

    torch keeps what it compiles with, until ``torch._dynamo.reset()``; an optimizer's step alone leaves a None there.
    """
    frames = sys.modules.get("torch._dynamo.eval_frame")
    if frames is None:
        return False
    backends = getattr(frames, "cached_backends", None)
    return backends is None or any(backend is not None for backend in backends.values())


class EagerForAWhile:
    """Compiled modules run their original code from now on, until ``remove``."""

    def __init__(self, model: nn.Module, wrappers: list[nn.Module]):
        modules = list(model.modules())
        self.forwards = [(w, w.forward) for w in (*wrappers, *(m for m in modules if is_wrapper(m)))]
        self.calls = [(m, m._compiled_call_impl) for m in (*wrappers, *modules) if m._compiled_call_impl is not None]
        for wrapper, _ in self.forwards:
            wrapper.forward = wrapper._orig_mod.__call__  # type: ignore[operator]
        for module, _ in self.calls:
            module._compiled_call_impl = None

    def remove(self) -> None:
        for wrapper, forward in self.forwards:
            wrapper.forward = forward
        for module, call in self.calls:
            module._compiled_call_impl = call

"""What is differentiated: the tensors that ``backward`` is called on, seen while a run is alive.

``Tensor.backward``, Accelerate, Lightning and a GradScaler all end in ``torch.autograd.backward``, which is looked up
anew at each call. A function is put in its place that tells the listeners first and then calls torch's own with the very
same arguments. It goes when the last listener goes. If someone wraps it in the meantime, their wrapper stays: ours
then only passes the call on.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class Root:
    """One call of ``backward``: its tensors, each with the gradient that the caller handed in (None: of a scalar)."""

    tensors: tuple[Tensor, ...]
    gradients: tuple[Tensor | None, ...]

    @cached_property
    def seeds(self) -> list[Tensor]:
        pairs = zip(self.tensors, self.gradients, strict=True)
        return [torch.ones_like(t) if g is None else g.detach() for t, g in pairs]

    @cached_property
    def value(self) -> float:
        """The scalar whose gradient is formed: ``sum <gradient, tensor>``."""
        pairs = zip(self.tensors, self.seeds, strict=True)
        return sum(float((t.detach().double() * seed.double()).sum()) for t, seed in pairs)

    def scalar(self) -> Tensor:
        """The same with its graph. A single scalar is itself: nothing is put on top of the user's graph."""
        if len(self.tensors) == 1 and self.tensors[0].dim() == 0 and self.gradients[0] is None:
            return self.tensors[0]
        with torch.enable_grad():
            parts = [(t * seed).sum() for t, seed in zip(self.tensors, self.seeds, strict=True)]
            return torch.stack([part.double() for part in parts]).sum() if len(parts) > 1 else parts[0]


class Listener(Protocol):
    """``awaits`` is asked at every backward pass of the process; if one says yes, all are told of it, unless it is part of
    another one."""

    def awaits(self, tensors: Any) -> bool: ...

    def before_backward(self, root: Root) -> Any: ...

    def after_backward(self, token: Any, failed: bool) -> None: ...

    def deaf(self) -> AbstractContextManager[None]:
        """Quiet while another listener looks at a graph in which both have hooks."""


class Watch:
    """Stands in for ``torch.autograd.backward`` as long as somebody listens."""

    def __init__(self) -> None:
        self.listeners: tuple[weakref.ref[Listener], ...] = ()
        self.original: Callable[..., None] | None = None
        self.standing: Callable[..., None] | None = None

    def add(self, listener: Listener) -> None:
        if any(known() is listener for known in self.listeners):
            return
        self.listeners = (*self.listeners, weakref.ref(listener, self._drop))
        if self.standing is None:
            self.original = torch.autograd.backward
            self.standing = torch.autograd.backward = make_stand_in(self, self.original)

    def discard(self, listener: Listener) -> None:
        for known in self.listeners:
            if known() is listener:
                self._drop(known)

    def _drop(self, known: weakref.ref[Listener]) -> None:
        self.listeners = tuple(other for other in self.listeners if other is not known)
        if not self.listeners and torch.autograd.backward is self.standing:
            assert self.original is not None
            torch.autograd.backward = self.original
            self.original = self.standing = None


def make_stand_in(watch: Watch, original: Callable[..., None]) -> Callable[..., None]:
    def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
        waiting = False
        for known in watch.listeners:  # mostly one, which has nothing to do: microseconds
            listener = known()
            if listener is not None and listener.awaits(tensors):
                waiting = True
        if waiting and torch._C._current_graph_task_id() == -1:  # else a part of another backward pass: checkpointing
            root = make_root(tensors, grad_tensors)
            if root is not None:
                listeners = [listener for known in watch.listeners if (listener := known()) is not None]
                return tell(listeners, root, lambda: original(tensors, grad_tensors, *args, **kwargs))
        return original(tensors, grad_tensors, *args, **kwargs)

    backward.__doc__, backward.__name__ = original.__doc__, "backward"
    backward.__wrapped__ = original  # type: ignore[attr-defined]
    leave_untraced(backward)
    return backward


def leave_untraced(function: Any) -> None:
    """``loss.backward()`` inside a compiled function: torch would go on to trace what listeners do."""
    try:
        frames = torch._C._dynamo.eval_frame
        skip = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.SKIP)
        frames.set_code_exec_strategy(function.__code__, skip)
    except (AttributeError, TypeError):  # another torch: it traces, breaks its graph, and goes on
        function._torchdynamo_disable = True


def tell(listeners: Sequence[Any], root: Root, differentiate: Callable[[], None]) -> None:
    """An exception in the user's backward pass is raised as usual; the listeners learn that the pass did not finish."""
    if len(listeners) == 1:  # the usual case, without a stack
        token, failed = listeners[0].before_backward(root), True
        try:
            differentiate()
            failed = False
        finally:
            if token is not None:
                listeners[0].after_backward(token, failed)
        return
    told, failed = [], True
    for listener in listeners:
        with (
            ExitStack() as stack
        ):  # what one of them computes on the common graph, the others must not take for training
            for other in listeners:
                if other is not listener:
                    stack.enter_context(other.deaf())
            token = listener.before_backward(root)
        if token is not None:
            told.append((listener, token))
    try:
        differentiate()
        failed = False
    finally:
        for listener, token in told:
            listener.after_backward(token, failed)


def make_root(tensors: Any, gradients: Any) -> Root | None:
    """None where the call is not one that torch plainly accepts: then it is left to torch."""
    if isinstance(tensors, Tensor):
        tensors, gradients = (tensors,), (gradients,)
    elif isinstance(tensors, Sequence):
        tensors = tuple(tensors)
        gradients = (None,) * len(tensors) if gradients is None else gradients
        gradients = (gradients,) if isinstance(gradients, Tensor) else tuple(gradients)
    else:
        return None
    if len(tensors) != len(gradients) or not tensors or not all(isinstance(t, Tensor) for t in tensors):
        return None
    if any(
        g is not None and (not isinstance(g, Tensor) or g.shape != t.shape)
        for t, g in zip(tensors, gradients, strict=True)
    ):
        return None
    if any(g is None and t.numel() != 1 for t, g in zip(tensors, gradients, strict=True)):
        return None
    return Root(tensors, gradients)


WATCH = Watch()

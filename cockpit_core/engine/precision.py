"""What we compute ourselves has the precision of its inputs, even where a whole step runs inside autocast."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import torch

from cockpit_core.foundation.faults import Faults, Guard

DEVICES = ("cpu", "cuda")


_is_on = torch.is_autocast_enabled
_is_any_on = getattr(torch._C, "_is_any_autocast_enabled", lambda: _is_on("cpu") or _is_on("cuda"))


def plain_precision() -> AbstractContextManager[Any]:
    return suspend_autocast() or nullcontext()


def suspend_autocast() -> ExitStack | None:
    """In force until it is closed; None where there is nothing to do: a tracked step asks dozens of times."""
    if not _is_on("cpu") and not _is_on("cuda"):
        return None
    stack = ExitStack()
    for device in DEVICES:
        if _is_on(device):
            stack.enter_context(torch.autocast(device, enabled=False))
    return stack


class PreciseGuard(Guard):
    __slots__ = ("precision",)

    def __enter__(self) -> None:
        self.precision = suspend_autocast() if _is_any_on() else None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if self.precision is not None:
            self.precision.close()
        return super().__exit__(kind, error, trace) if error is not None else False


class PreciseFaults(Faults):
    """Guards what we compute while the user's step goes by."""

    def guard(self, where: str) -> Guard:
        return PreciseGuard(self, where)

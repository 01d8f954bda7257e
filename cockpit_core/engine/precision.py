"""What we compute ourselves has the precision of what it is computed from, also where a whole step runs inside autocast."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from cockpit_core.foundation.faults import Faults, Guard

DEVICES = ("cpu", "cuda")


@contextmanager
def plain_precision() -> Iterator[None]:
    inside = [device for device in DEVICES if torch.is_autocast_enabled(device)]
    if not inside:
        yield
        return
    with ExitStack() as stack:
        for device in inside:
            stack.enter_context(torch.autocast(device, enabled=False))
        yield


class PreciseGuard(Guard):
    __slots__ = ("precision",)

    def __enter__(self) -> None:
        self.precision = plain_precision()
        self.precision.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        self.precision.__exit__(None, None, None)
        return super().__exit__(kind, error, trace)


class PreciseFaults(Faults):
    """Guards what we compute while the user's step goes by."""

    def guard(self, where: str) -> Guard:
        return PreciseGuard(self, where)

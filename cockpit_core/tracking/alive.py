"""Runs that are not closed, so that tracking one model twice at once can be refused."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import nn


class Open(Protocol):
    """What is asked of a run here."""

    closed: bool

    @property
    def model(self) -> nn.Module: ...

    @property
    def log(self) -> Any: ...


ALIVE: weakref.WeakSet[Open] = weakref.WeakSet()


def refuse_second_run(model: nn.Module) -> None:
    for other in list(ALIVE):
        if not other.closed and other.model is model:
            raise RuntimeError(
                f"this model is being tracked already, into {other.log.logdir}; call close() on that run first"
            )

"""Runs that are not closed, so that tracking one model twice at once can be refused."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

    from cockpit_core.tracking.tracker import Tracker

ALIVE: weakref.WeakSet[Tracker] = weakref.WeakSet()


def refuse_second_run(model: nn.Module) -> None:
    for other in list(ALIVE):
        if not other.closed and other.model is model:
            raise RuntimeError(
                f"this model is being tracked already, into {other.log.logdir}; call close() on that run first"
            )

"""What we compute ourselves has the precision of what it is computed from, also where a whole step runs inside autocast."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from cockpit_core.foundation.faults import Faults

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


class PreciseFaults(Faults):
    """Guards what we compute while the user's step goes by."""

    @contextmanager
    def guard(self, where: str) -> Iterator[None]:
        with super().guard(where), plain_precision():
            yield

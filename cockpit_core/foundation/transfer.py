"""Numbers that lie on a device and are wanted on the host: asked for one by one, brought over together.

Every copy from a device waits for all that it has to do before. So whoever needs numbers says so as soon as the tensor is
there, and reads them as late as possible: the first who reads brings over all that was asked for until then.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Asked:
    """Some tensors that are wanted on the host. They must not be written into before they are read."""

    __slots__ = ("arrived", "tensors", "transfer")

    def __init__(self, transfer: Transfer, tensors: Sequence[Tensor]):
        self.transfer, self.tensors = transfer, list(tensors)
        self.arrived: list[Tensor] | None = self.tensors if all(is_here(t) for t in self.tensors) else None

    def read(self) -> list[Tensor]:
        """The same tensors on the host."""
        if self.arrived is None:
            self.transfer.bring()
        assert self.arrived is not None
        return self.arrived


class Transfer:
    """What one step asks for."""

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: list[Asked] = []

    def ask(self, tensors: Sequence[Tensor]) -> Asked:
        asked = Asked(self, tensors)
        if asked.arrived is None:
            self.waiting.append(asked)
        return asked

    def bring(self) -> None:
        """All that waits, at once."""
        waiting, self.waiting = self.waiting, []
        brought = iter(bring([tensor for asked in waiting for tensor in asked.tensors]))
        for asked in waiting:
            asked.arrived = [next(brought) for _ in asked.tensors]
            asked.tensors = []


def is_here(tensor: Tensor) -> bool:
    return tensor.is_cpu


def bring(tensors: Sequence[Tensor]) -> list[Tensor]:
    """To the host, as bytes side by side: one transfer, whatever their types."""
    away = [tensor.detach() for tensor in tensors if not is_here(tensor)]
    if not away:
        return list(tensors)
    flat = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in away]
    host = torch.cat([part.to(flat[0].device) for part in flat]).cpu()
    parts = host.split([part.numel() for part in flat])
    # A copy of each, because numbers must begin at multiples of their size.
    here = iter([p.clone().view(t.dtype).reshape(t.shape) for p, t in zip(parts, away, strict=True)])
    return [tensor if is_here(tensor) else next(here) for tensor in tensors]

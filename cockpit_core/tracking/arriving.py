"""Losses on their way from a device to the host: nobody waits for them; they are looked at when they have arrived."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cockpit_core.foundation.accelerator import HOSTS, has_events, is_capturing, record

SLOTS = 16
"""This many may be on their way; a loss that comes when all places are taken is not looked at."""


class Arriving:
    """A ring of places in memory that the device writes into by itself, each with an event that says when it has."""

    def __init__(self) -> None:
        self.kind: tuple[torch.device, torch.dtype] | None = None
        self.places: list[Tensor] = []
        self.events: list[Any] = []
        self.first = self.count = 0
        self.is_off = False

    def send(self, loss: Tensor) -> None:
        """Have the device copy it. Losses of another device or type start a new ring."""
        device = loss.device
        if self.is_off or device.type in HOSTS or type(loss) is not Tensor or is_capturing(device):
            return
        if (device, loss.dtype) != self.kind:
            self._open(loss)
        if self.count < len(self.places):
            at = (self.first + self.count) % SLOTS
            self.places[at].copy_(loss.detach(), non_blocking=True)
            self.events[at] = record(device, self.events[at])
            self.count += 1

    def _open(self, loss: Tensor) -> None:
        self.kind, self.first, self.count = (loss.device, loss.dtype), 0, 0
        self.is_off = not has_events(loss.device)
        if not self.is_off:  # a copy into memory that is not pinned would wait after all
            self.places = list(torch.zeros(SLOTS, dtype=loss.dtype, device="cpu", pin_memory=True).unbind())
            self.events = [None] * SLOTS

    def take(self) -> list[tuple[float, int]]:
        """Those that have arrived, in their order: each with how many were sent after it."""
        taken = []
        while self.count and self.events[self.first].query():
            self.count -= 1
            taken.append((float(self.places[self.first]), self.count))
            self.first = (self.first + 1) % SLOTS
        return taken

"""Memory that a tracked step frees stays with the process for the next one.

A tracked step holds more at once than an untracked one. The C library of Linux hands what is free at the end of the heap
back to the system as soon as it exceeds a limit, and fetches it again at the next step, page by page, each of them zeroed:
that took a sixth of a tracked step of a ResNet, and a tenth of the untracked step of 3C3D. The limit follows the largest
block that was ever freed; so one large block is taken and freed once, without being written to.
"""

from __future__ import annotations

import torch

LARGEST_FOLLOWED = 32 * 2**20
"""Bytes of the largest block that glibc's limit follows; twice as much then stays with the process."""


def keep_freed_memory() -> None:
    """Takes microseconds. Without effect where the limits were set by hand (``MALLOC_TRIM_THRESHOLD_``), and elsewhere."""
    torch.empty(LARGEST_FOLLOWED - 2**16, dtype=torch.uint8, device="cpu")

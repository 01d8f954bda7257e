"""Once per process, before the first step: load what a tracked step loads, so that no step waits for it."""

from __future__ import annotations

import tempfile
import warnings
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from cockpit_core.layers import random_state

if TYPE_CHECKING:
    from collections.abc import Callable

BATCH, WIDTH, CLASSES = 4, 3, 2


@cache
def warm_up(open_run: Callable[..., Any]) -> None:
    """A tiny network is trained for three steps and tracked in full into a temporary folder. That loads modules,
    kernels and tables; an error in it does not concern the user."""
    with random_state.kept(), torch.enable_grad(), warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        try:
            model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES))
            loss_fn, optimizer = nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1)
            run = open_run(model, loss_fn, [optimizer], Path(folder) / "warm")
            x, y = torch.ones(BATCH, WIDTH), torch.arange(BATCH) % CLASSES
            try:
                for _ in range(3):
                    optimizer.zero_grad()
                    loss_fn(model(x), y).backward()
                    optimizer.step()
            finally:
                run.close()
        except Exception:
            return

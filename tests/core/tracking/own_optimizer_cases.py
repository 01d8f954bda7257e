"""What the tests of own optimizers share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

import cockpit_core
from tests.training import Training

Iteration = Callable[[Training, Any, Tensor, Tensor, cockpit_core.Run], None]


def in_two_calls(training: Training, optimizer: Any, inputs: Tensor, targets: Tensor, run: cockpit_core.Run) -> None:
    training.loss_fn(training.model(inputs), targets).backward()
    optimizer.first_step()
    training.loss_fn(training.model(inputs), targets).backward()
    optimizer.second_step()


def plainly(training: Training, optimizer: Any, inputs: Tensor, targets: Tensor, run: cockpit_core.Run) -> None:
    optimizer.zero_grad()
    training.loss_fn(training.model(inputs), targets).backward()
    optimizer.step()

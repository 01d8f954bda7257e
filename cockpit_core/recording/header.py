"""What a run says about itself once: model, layers, optimizer, quantities, versions, commit."""

from __future__ import annotations

import platform
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cockpit_core._version import __version__
from cockpit_core.foundation.records import Header, OptimizerInfo, QuantityInfo
from cockpit_core.quantities import Quantity
from cockpit_core.schedules import Schedule, describe


def make_header(model: nn.Module, loss_fn: Any, optimizers: Sequence[torch.optim.Optimizer], logdir: Path) -> Header:
    """What is known before the first step; layers, coverage and batch size follow."""
    return Header(
        run_id=uuid.uuid4().hex,
        name=logdir.name,
        created=time.time(),
        model=type(model).__name__,
        num_parameters=sum(p.numel() for p in model.parameters()),
        loss=""
        if loss_fn is None
        else type(loss_fn).__name__
        if isinstance(loss_fn, nn.Module)
        else getattr(loss_fn, "__name__", ""),
        optimizers=[describe_optimizer(optimizer, model) for optimizer in optimizers],
        versions={
            "cockpit": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "platform": sys.platform,
        },
        git_commit=find_commit(),
    )


def describe_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module) -> OptimizerInfo:
    names = {id(p): name for name, p in model.named_parameters()}
    info = OptimizerInfo(type(optimizer).__name__)
    for group in optimizer.param_groups:
        info.groups.append({key: show(value) for key, value in group.items() if key != "params" and value is not None})
        info.group_layers.append([names[id(p)] for p in group["params"] if id(p) in names])
    return info


def show(value: Any) -> str:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    return f"{value:g}" if isinstance(value, float) else str(value)


def describe_quantity(quantity: Quantity, schedule: Schedule) -> QuantityInfo:
    return QuantityInfo(
        quantity.name, quantity.kind, quantity.layerwise, quantity.unit, quantity.description,
        describe(schedule), quantity.options(), quantity.defined_for_sgd,
    )  # fmt: skip


def find_commit() -> str:
    """The commit of the working directory, with a + if something is not committed; "" outside a repository."""
    command = ["git", "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=2, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""

"""The arguments of ``track``, all of them looked at before anything is done: each error names the argument and the remedy."""

from __future__ import annotations

import math
import operator
import os
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cockpit_core.tracking.optimizers import HOLDERS, drop_inner, has_hooks, parameters_of, unwrap_optimizer

LARGEST_STEP = 2**32 - 1
"""What the log stores a step in."""


def check_model(model: Any) -> None:
    if not isinstance(model, nn.Module):
        hint = "; make one first: model = Net()" if isinstance(model, type) else ""
        raise TypeError(f"model must be an nn.Module, got {type(model).__name__}{hint}")
    lazy = [name for name, p in model.named_parameters() if isinstance(p, torch.nn.parameter.UninitializedParameter)]
    if lazy:
        raise ValueError(
            f"{lazy[0]} is not initialised yet (a lazy module): run one batch through the model, then track it"
        )
    if not any(p.requires_grad for p in model.parameters()):
        raise ValueError("no parameter of the model requires a gradient; there is nothing to track")


def check_loss(loss_fn: Any) -> None:
    if isinstance(loss_fn, type) and issubclass(loss_fn, nn.Module):
        raise TypeError(
            f"loss_fn is the class {loss_fn.__name__}; pass the object that the loop calls: {loss_fn.__name__}()"
        )
    if loss_fn is not None and not isinstance(loss_fn, nn.Module) and not callable(loss_fn):
        raise TypeError(f"loss_fn must be an nn.Module, a function, or None, got {type(loss_fn).__name__}")


def choose_optimizers(optimizer: Any, model: nn.Module) -> list[torch.optim.Optimizer]:
    """The optimizers to hook: those inside wrappers, none twice, none that another one holds."""
    if isinstance(optimizer, nn.Module):
        raise TypeError(
            f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}; "
            "the order is track(model, loss_fn, optimizer)"
        )
    given = list(optimizer) if isinstance(optimizer, Sequence) and not isinstance(optimizer, str) else [optimizer]
    if not given:
        raise ValueError("optimizer is an empty list")
    optimizers = [unwrap_optimizer(each) for each in given]
    for each in optimizers:
        check_optimizer(each)
    if len({id(each) for each in optimizers}) < len(optimizers):
        raise ValueError("optimizer names the same optimizer twice; a step is one step of each")
    optimizers = drop_inner(optimizers)
    mine = {id(p) for p in model.parameters()}
    if not any(id(p) in mine for p in parameters_of(optimizers)):
        # The training goes on as it would without us, and the log says what is wrong with it (optimizer_holds_others).
        warnings.warn(
            "the optimizer holds no parameter of this model, so that nothing of it will move; was the model copied, moved or "
            "replaced after the optimizer was made?",
            stacklevel=4,
        )
    return optimizers


def check_optimizer(optimizer: Any) -> None:
    name = type(optimizer).__name__
    if isinstance(optimizer, type):
        raise TypeError(f"optimizer is the class {optimizer.__name__}; pass the object that the loop steps")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            f"optimizer must be a torch.optim.Optimizer, got {name}; a wrapper is looked into if it keeps the optimizer "
            f"as {', '.join(HOLDERS)}, and a class of your own has to be a subclass of torch.optim.Optimizer"
        )
    if not has_hooks(optimizer):
        raise TypeError(f"{name} has no step hooks: its __init__ must call super().__init__(params, defaults)")


def check_logdir(logdir: Any) -> Path | None:
    if logdir is None:
        return None
    if not isinstance(logdir, (str, os.PathLike)) or not isinstance(os.fspath(logdir), str):
        raise TypeError(f"logdir must be a path, got {type(logdir).__name__}")
    if not os.fspath(logdir) or "\0" in os.fspath(logdir):
        raise ValueError(f"logdir must name a directory, got {os.fspath(logdir)!r}; None makes one in runs/")
    return Path(logdir)


def check_layers(layers: Any) -> list[str] | None:
    if layers is None:
        return None
    patterns = [layers] if isinstance(layers, str) else list(layers) if isinstance(layers, Iterable) else [layers]
    if not patterns or not all(isinstance(pattern, str) for pattern in patterns):
        raise TypeError(f"layers must be glob patterns over parameter names such as 'conv*', got {layers!r}")
    return patterns


def check_on_error(on_error: Any) -> None:
    if on_error not in ("warn", "raise"):
        raise ValueError(f"on_error must be 'warn' or 'raise', got {on_error!r}")


def check_budget(budget: Any) -> None:
    if budget is not None and not (is_number(budget) and 0 < budget <= 1):
        raise ValueError(f"budget is a share of the training time between 0 and 1, got {budget!r}")


def check_steps_per_epoch(value: Any) -> float | None:
    if value is None:
        return None
    if not is_number(value) or not 0 < float(value) < math.inf:
        raise ValueError(f"steps_per_epoch must be a positive number, got {value!r}; it is len(loader) in most loops")
    return float(value)


def check_whole(name: str, value: Any, least: int, most: int = 2**63 - 1) -> int:
    """An int, or a number of another library that stands for one."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        whole = is_number(value) and math.isfinite(value) and float(value).is_integer()
        hint = f"; write {name}={int(value)}" if whole else ""
        raise TypeError(f"{name} must be a whole number, got {value!r}{hint}")
    if not least <= number <= most:
        bound = f"at least {least}" if number < least else f"at most {most}"
        raise ValueError(f"{name} must be {bound}, got {number}")
    return number


def check_step(step: Any) -> int | None:
    """The number of the first step that will be tracked."""
    return None if step is None else check_whole("step", step, 0, LARGEST_STEP)


def check_bytes(name: str, value: Any) -> int:
    """A number of bytes; many people write 1e9."""
    if is_number(value) and math.isfinite(value) and not isinstance(value, int):
        value = int(value)
    return check_whole(name, value, 0)


def check_flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return value


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
